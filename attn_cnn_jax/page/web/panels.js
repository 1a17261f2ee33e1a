"use strict";
// What the network makes of the picture: class probabilities, and the prediction after each layer.

const MOST_CLASSES = 10; // with more than two more, these most probable ones are shown

/** Whether the network's answer for the chosen picture is there, and goes with what is shown. */
const isComputed = () => classified !== null && classified.picture === view.picture && atEnd();

const indexOfLargest = (values) => values.indexOf(Math.max(...values));

const numberShown = () => (network.classes.length <= MOST_CLASSES + 2 ? network.classes.length : MOST_CLASSES);

/** Numbers of the classes to show, in the order to show them. */
function shownClasses() {
  const all = network.classes.map((_, n) => n);
  if (all.length === numberShown()) return all;
  const logits = classified?.logits.at(-1) ?? [];
  return all.sort((a, b) => logits[b] - logits[a]).slice(0, MOST_CLASSES);
}

/** What the network takes a picture for: as computed here, or as stored with it. */
function predictionText(picture) {
  if (!network) return picture.prediction && `predicted ${picture.prediction} (${percent(picture.confidence)})`;
  if (!isComputed()) return "";
  const probabilities = classProbabilities(classified.logits.at(-1));
  const best = indexOfLargest(probabilities);
  return `predicted ${network.classes[best]} (${percent(probabilities[best])})`;
}

function makePanels() {
  if (!network) return;
  for (let n = 0; n < numberShown(); n++) {
    $("bars").append(make("li", {}, make("span", { className: "name" }), make("span", { className: "bar" }), make("output")));
  }
  const longest = Math.max(...network.classes.map((name) => name.length));
  $("bars").style.setProperty("--name", `${0.6 * (Math.min(longest, 10) + 1)}em`);
  const names = ["input", ...data.layers.map((_, l) => `layer ${l + 1}`)];
  $("lens-rows").append(...names.map((name) => make("tr", {}, make("th", { scope: "row", textContent: `${name}` }))));
}

function showPanels() {
  $("classes").hidden = $("lens").hidden = !network;
  if (!network) return;
  $("panels").classList.toggle("waiting", !isComputed());
  const classes = shownClasses();
  showBars(classes);
  showLens(classes);
}

/** Whether the network has said nothing that could be shown: of an earlier epoch, or of a canvas without strokes. */
const saysNothing = () => classified === null || !atEnd();

/** Bars of the class probabilities; the image's own class is marked. */
function showBars(classes) {
  const probabilities = saysNothing() ? new Float64Array(network.classes.length) : classProbabilities(classified.logits.at(-1));
  const label = data.pictures[view.picture]?.label;
  const best = saysNothing() ? null : indexOfLargest(probabilities);
  [...$("bars").children].forEach((row, n) => {
    const chosen = classes[n], [name, , output] = row.children;
    row.style.setProperty("--share", probabilities[chosen]);
    row.classList.toggle("best", chosen === best);
    row.classList.toggle("label", network.classes[chosen] === label);
    name.textContent = row.title = network.classes[chosen];
    output.textContent = best === null ? "–" : percent(probabilities[chosen]);
  });
}

/** The classifier on the mean of each layer: a row a layer, a column a class. */
function showLens(classes) {
  if (saysNothing()) return;
  [...$("lens-rows").rows].forEach((row, l) => {
    const probabilities = classProbabilities(classified.logits[l]);
    const best = indexOfLargest(probabilities);
    while (row.cells.length > 1) row.deleteCell(-1);
    for (const chosen of classes) {
      const cell = make("td", { className: chosen === best ? "best" : "" });
      cell.style.setProperty("--share", probabilities[chosen]);
      cell.title = `${network.classes[chosen]}: ${percent(probabilities[chosen])}`;
      row.append(cell);
    }
    row.append(make("td", { className: "text", textContent: `${network.classes[best]} (${percent(probabilities[best])})` }));
  });
}
