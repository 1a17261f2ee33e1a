"use strict";
// It trains: the reader chooses some heads, says whether they are enough, and watches them learn a convolution (learning.js).

const SEED = 0; // of the convolution and of the start
const ENOUGH = 0.01; // an error that counts as the convolution
const VERDICTS = {
  4: "Four heads are four views of the image, and the kernel has nine entries: training cannot make up for the other five.",
  9: "The heads did not go to the nine pixels of the grid: nine soft heads that overlap add up to the same kernel.",
  16: "Sixteen heads have views to spare, and are no better than nine.",
};

/** The training that is shown: `student`, its `advance()`, the next `step`, and `records` of error and centres. */
let lesson = null;

const chosen = (name) => document.querySelector(`input[name=${name}]:checked`)?.value;

function startLesson() {
  const random = randomNumbers(SEED), entries = entriesOf(newTeacher(random));
  const heads = Number(chosen("heads")), student = newStudent(heads, random), update = adam(student);
  const records = [], expected = chosen("guess") === "yes";
  const advance = () => {
    const { error, gradients } = errorAndGradients(student, entries);
    if (lesson.step % 10 === 0) records.push({ error, centre: Array.from(student.centre) });
    update(gradients, lesson.step++);
  };
  lesson = { student, advance, step: 0, records, heads, expected };
  $("verdict").textContent = "";
  continueLesson(lesson);
}

/** Takes the steps of one frame, and asks for the next. Whoever wants no motion sees few frames. */
function continueLesson(now) {
  if (now !== lesson) return; // another one was started
  const steps = wantsNoMotion() ? 500 : 10;
  for (let n = 0; n < steps; n++) lesson.advance();
  showLesson();
  if (lesson.step < LEARNING.steps) requestAnimationFrame(() => continueLesson(now));
  else showVerdict();
}

/** Rings of the heads, the ways that their centres went, and the error, on an axis of powers of ten. */
function showLesson() {
  const { student: { centre, spread }, records, heads } = lesson;
  const ways = Array.from({ length: heads }, (_, h) => records.map((record) => `${record.centre[2 * h + 1]},${record.centre[2 * h]}`));
  $("ways").innerHTML = ways.map((way, h) => `<polyline points="${way.join(" ")}"/>`
    + `<circle cx="${centre[2 * h + 1]}" cy="${centre[2 * h]}" r="${1 / Math.abs(spread[h])}"/>`).join("");
  $("fall").setAttribute("points", records.map(({ error }, n) => `${n / 3},${-20 * Math.log10(error)}`).join(" "));
  $("learning-error").textContent = `Step ${lesson.step}: error ${errorText()}`;
}

const errorText = () => `${(100 * lesson.records.at(-1).error).toPrecision(2)}%`;

function showVerdict() {
  const { expected, heads, records } = lesson, isEnough = records.at(-1).error < ENOUGH;
  $("verdict").textContent = `${expected === isEnough ? "As you said" : "Not as you said"}: the error ends at ${errorText()}, `
    + `${heads} heads are ${isEnough ? "" : "not "}enough. ${VERDICTS[heads]}`;
}

function listenToStudent() {
  $("learning").addEventListener("change", () => { $("learn").disabled = !chosen("heads") || !chosen("guess"); });
  $("learn").addEventListener("click", startLesson);
}
