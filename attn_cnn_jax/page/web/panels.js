"use strict";
// What the network makes of the picture: class probabilities, and the prediction after each layer.

const MOST_CLASSES = 10; // with more than two more, these most probable ones are shown

/** Whether the network's answer for the chosen picture is there, and goes with what is shown. */
const isComputed = () => classified !== null && classified.picture === view.picture && atEnd();

/** Class probabilities after each layer; null where there is nothing to show: of an earlier epoch, or an empty canvas. */
const shownProbabilities = () =>
  (classified === null || !atEnd() ? null : classified.logits.map((logits) => softmax(Float64Array.from(logits))));

/** Numbers of the classes to show, in the order to show them. */
function shownClasses() {
  const all = network.classes.map((_, n) => n), logits = classified?.logits.at(-1) ?? [];
  return all.length <= MOST_CLASSES + 2 ? all : all.sort((a, b) => logits[b] - logits[a]).slice(0, MOST_CLASSES);
}

/** The most probable class and its probability, in words. */
function bestText(probabilities) {
  const best = probabilities.indexOf(Math.max(...probabilities));
  return `${network.classes[best]} (${percent(probabilities[best])})`;
}

/** What the network takes a picture for: as computed here, or as stored with it. */
function predictionText(picture) {
  if (!network) return picture.prediction && `predicted ${picture.prediction} (${percent(picture.confidence)})`;
  return isComputed() ? `predicted ${bestText(shownProbabilities().at(-1))}` : "";
}

function showPanels() {
  $("classes").hidden = $("lens").hidden = !network;
  if (!network) return;
  $("panels").classList.toggle("waiting", !isComputed());
  const longest = Math.max(...network.classes.map((name) => name.length));
  $("bars").style.setProperty("--name", `${0.6 * (Math.min(longest, 10) + 1)}em`);
  const layers = shownProbabilities(), classes = shownClasses();
  $("bars").replaceChildren(...classes.map((n) => bar(n, layers?.at(-1))));
  if (layers) $("lens-rows").replaceChildren(...layers.map((probabilities, l) => lensRow(probabilities, l, classes)));
}

/** A class and its probability; the most probable one and the image's own are marked.
    @type {(n: number, probabilities?: any) => HTMLElement} */
function bar(n, probabilities = []) {
  const name = network.classes[n], share = probabilities[n] ?? 0;
  const row = make("li", { title: name }, make("span", { className: "name", textContent: name }), make("span", { className: "bar" }),
    make("output", { textContent: probabilities.length ? percent(share) : "–" }));
  row.style.setProperty("--share", share);
  row.classList.toggle("best", share > 0 && share === Math.max(...probabilities));
  row.classList.toggle("label", name === data.pictures[view.picture]?.label);
  return row;
}

/** The classifier on the mean of one layer: a column a class. */
function lensRow(probabilities, l, classes) {
  const cells = classes.map((n) => {
    const cell = make("td", { title: `${network.classes[n]}: ${percent(probabilities[n])}` });
    cell.style.setProperty("--share", probabilities[n]);
    return cell;
  });
  const name = make("th", { scope: "row", textContent: l === 0 ? "input" : `layer ${l}` });
  return make("tr", {}, name, ...cells, make("td", { className: "text", textContent: bestText(probabilities) }));
}
