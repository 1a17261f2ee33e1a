"use strict";
// It trains: the reader chooses some heads, says whether they are enough, and watches them learn a convolution (learning.js).

const ENOUGH = 0.01; // an error that counts as the convolution
const VERDICTS = {
  4: "Four heads are four views of the image, and the kernel has nine entries: training cannot make up for the other five. "
    + "Of attention that ignores the image no four heads of any pattern have an error below 61.2% on this kernel.",
  9: "The heads did not go to the nine pixels of the grid: nine soft heads that overlap add up to the same kernel.",
  16: "Sixteen heads have views to spare, and are no better than nine.",
};

/** The training that is shown: of how many `heads`, whether the reader `expected` them to do (null where nobody was asked), and
    its `records`.
    @type {{ heads: number, expected: boolean | null, records: LessonRecord[] } | null} */
let lesson = null;

const chosen = (name) => document.querySelector(`input[name=${name}]:checked`)?.value;

/** Asks the worker for a training, and shows its records as they come; few of them to whoever wants no motion. */
async function startLesson(heads, expected) {
  const now = lesson = { heads, expected, records: [] };
  const put = (record) => {
    now.records.push(record);
    if (now === lesson && (!wantsNoMotion() || record.step % 500 === 0)) showLesson();
  };
  $("verdict").textContent = "";
  put(await question("learn", view, { heads: now.heads }, put));
  if (now === lesson) showVerdict();
}

/** Rings of the heads, the ways that their centres went, and the error, on an axis of powers of ten. */
function showLesson() {
  const { records, heads } = lesson, { step, centre, spread } = records.at(-1);
  const ways = Array.from({ length: heads }, (_, h) => records.map((record) => `${record.centre[2 * h + 1]},${record.centre[2 * h]}`));
  $("ways").innerHTML = ways.map((way, h) => `<polyline points="${way.join(" ")}"/>`
    + `<circle cx="${centre[2 * h + 1]}" cy="${centre[2 * h]}" r="${1 / Math.abs(spread[h])}"/>`).join("");
  $("fall").setAttribute("points", records.map(({ error }, n) => `${n / 3},${-20 * Math.log10(error)}`).join(" "));
  $("learning-error").textContent = `Step ${step}: error ${errorText()}`;
}

const errorText = () => `${(100 * lesson.records.at(-1).error).toPrecision(2)}%`;

function showVerdict() {
  const { expected, heads, records } = lesson, isEnough = records.at(-1).error < ENOUGH;
  const opinion = expected === null ? "" : expected === isEnough ? "As you said: " : "Not as you said: ";
  $("verdict").textContent = `${opinion || "Nine heads, played once: "}the error ends at ${errorText()}, `
    + `${heads} heads are ${isEnough ? "" : "not "}enough. ${VERDICTS[heads]}`;
}

function listenToStudent() {
  $("learning").addEventListener("change", () => { $("learn").disabled = !chosen("heads") || !chosen("guess"); });
  $("learn").addEventListener("click", () => startLesson(Number(chosen("heads")), chosen("guess") === "yes"));
  const once = new IntersectionObserver(([{ isIntersecting }]) => { // plays nine heads once it is in sight
    if (!isIntersecting) return;
    once.disconnect();
    if (lesson || wantsNoMotion()) return;
    document.querySelector("input[name=heads][value='9']").checked = true;
    startLesson(9, null);
  }, { threshold: 0.6 });
  once.observe($("learning"));
}
