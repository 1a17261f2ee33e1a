"use strict";
// The elements of the page: made once, brought up to date by `show`.

const STATISTICS = [ // label, explanation, text of a set of statistics
  ["Centre", "centre of mass: rows, columns from the query pixel", (s) => `${signed(s.row)}, ${signed(s.column)}`],
  ["Spread", "standard deviation along the two main axes, in pixels", (s) => mainAxes(s).map(fixed).join(" × ")],
  ["Distance", "mean distance from the query pixel, in pixels", (s) => fixed(s.distance)],
  ["Entropy", "in nats", (s) => fixed(s.entropy)],
  ["At centre", "share of the attention in the pixel nearest to the centre", (s) => `${(100 * s.atCentre).toFixed(1)}%`],
];

const $ = (id) => document.getElementById(id);
const tiles = []; // tiles[layer][head]: {button, canvas}
const darkness = matchMedia("(prefers-color-scheme: dark)");
const theme = () => (darkness.matches ? "dark" : "light");
const isHead = (head, layer, number) => head !== null && head[0] === layer && head[1] === number;
const headName = ([layer, head]) => `Layer ${layer + 1}, head ${head + 1}`;
const percent = (share) => `${share > 0 && share < 0.01 ? "<1" : Math.round(100 * share)}%`;
const fixed = (x) => x.toFixed(2);
const signed = (x) => (x < -0.005 ? "−" : "+") + fixed(Math.abs(x));
const termName = (term) => term.replace("_and_", " and ").replace("_", "–");

/** An element with properties and children; text given here is never read as HTML. */
function make(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function makeHeading() {
  document.title = data.title;
  $("title").textContent = data.title;
  const counts = [...new Set(data.layers.map((layer) => layer.heads))];
  const heads = counts.length === 1 ? `${counts[0]} heads` : data.layers.map((layer) => layer.heads).join(", ") + " heads";
  const { dataset, encoding, step } = data.facts;
  $("facts").textContent = [
    dataset, `${encoding.replaceAll("_", " ")} encoding`, `${data.layers.length} layers of ${heads}`,
    `${grid[0]}×${grid[1]} pixels`, `step ${step}`,
  ].join(" · ");
}

function makeHeads() {
  const sizes = { most: Math.max(...data.layers.map((layer) => layer.heads)), layers: data.layers.length, aspect: grid[1] / grid[0] };
  for (const name in sizes) $("heads").style.setProperty(`--${name}`, sizes[name]);
  data.layers.forEach((layer, l) => {
    tiles.push(Array.from({ length: layer.heads }, (_, h) => {
      const canvas = make("canvas", { width: grid[1], height: grid[0] });
      const name = make("span", { className: "number", textContent: h + 1 });
      const button = make("button", { className: "head", type: "button", tabIndex: -1 }, canvas, name);
      return { button, canvas };
    }));
    const row = make("div", { className: "row" }, ...tiles[l].map((tile) => tile.button));
    const box = make("input", { type: "checkbox", className: "layer-on", checked: true });
    box.setAttribute("aria-label", `Layer ${l + 1} is on`);
    const onOff = network ? [make("label", { title: "off: the layer passes on its input" }, box, " on")] : [];
    const group = make("div", { className: "layer" }, make("h3", {}, `Layer ${l + 1}`, ...onOff), row);
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", `Layer ${l + 1}`);
    $("heads").append(group);
  });
}

function makeSettings() {
  for (const term of data.terms) {
    const box = make("input", { type: "checkbox", value: term });
    $("terms").append(make("label", {}, box, ` ${termName(term)}`));
  }
  $("history").hidden = lastEpoch < 1;
  $("epoch").max = lastEpoch;
  makePanels();
  $("draw").hidden = !canDraw();
  $("tile-choice").hidden = !canAsk;
  const larger = Math.max(...grid);
  $("picture").width = Math.round((640 * grid[1]) / larger);
  $("picture").height = Math.round((640 * grid[0]) / larger);
}

/** Adds a picture's button; `picture.image` is what can be drawn of it. */
function makePicture(picture, index) {
  const thumbnail = make("img", { src: picture.source, alt: "" });
  picture.image = thumbnail;
  const button = make("button", { type: "button", title: pictureName(picture) }, thumbnail);
  button.setAttribute("aria-label", pictureName(picture));
  button.dataset.index = index;
  $("pictures").append(button);
}

const pictureName = (picture) => (picture.label ? `${picture.label} (${picture.name})` : picture.name);

// --- bringing up to date ---

let waiting = false;

/** Shows the current view with the next frame; many changes in between cost one drawing. */
function show() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    showNow();
  });
}

function showNow() {
  if (contentIsMissing()) return; // what is on the page stays until the picture's scores are there
  const colours = colourTable(theme());
  if (showsImages()) tiles.forEach((layer, l) => layer.forEach(({ canvas }, h) => drawBytes(canvas, answered.shifted[l][h], data)));
  else showMaps(colours);
  showChoices();
  showSteps();
  showPanels();
  showChanges();

  const head = currentHead();
  const statistics = head && queryStatistics(...head);
  const map = head && mapOf(...head);
  const overlay = overlayOf(head, map, head && rangeOf(map), statistics);
  const image = drawing.isOn ? drawing.ink : data.pictures[view.picture]?.image;
  drawStage($("picture"), image, grid, currentQuery(), overlay, colours, theme());
  $("overlay-text").textContent = overlayText(head);
  showReading(head, statistics, map);
  showTheorem();
}

/** Whether tiles show what heads make of the image: not at earlier epochs, whose values are not recorded. */
const showsImages = () => view.tiles === "image" && answered !== null && atEnd();

/** Draws where the query looks, or the scores behind that, of every head. */
function showMaps(colours) {
  const maps = data.layers.map((layer, l) => Array.from({ length: layer.heads }, (_, h) => mapOf(l, h)));
  const ranges = maps.map((layer) => layer.map(rangeOf));
  const common = [Math.min(...ranges.flat().map(([low]) => low)), Math.max(...ranges.flat().map(([, high]) => high))];
  maps.forEach((layer, l) => layer.forEach((map, h) =>
    drawMap(tiles[l][h].canvas, map, grid, view.common ? common : ranges[l][h], colours)));
  showLegend(colours, common);
}

function showLegend(colours, [low, high]) {
  drawMap($("ramp"), Float64Array.from({ length: 64 }, (_, n) => n), [1, 64], [0, 63], colours);
  const [least, most] = view.softmax ? ["0", "head’s largest"] : ["head’s lowest 5%", "head’s highest"];
  $("low").textContent = view.common ? shortNumber(low) : least;
  $("high").textContent = view.common ? shortNumber(high) : most;
}

/** Controls, marks and labels that say what is chosen. */
function showChoices() {
  const [row, column] = currentQuery();
  const place = { left: column / grid[1], top: row / grid[0], wide: 1 / grid[1], high: 1 / grid[0] };
  for (const name in place) $("heads").style.setProperty(`--${name}`, `${100 * place[name]}%`);
  $("picture").setAttribute("aria-label", `Query pixel: row ${row}, column ${column}`);
  tiles.forEach((layer, l) => layer.forEach(({ button }, h) => {
    button.setAttribute("aria-pressed", isHead(view.head, l, h));
    const isOff = view.off.has(`${l},${h}`) || view.skipped.has(l);
    button.classList.toggle("off", isOff);
    button.setAttribute("aria-label", `${headName([l, h])}${isOff ? ", off" : ""}`);
    button.tabIndex = isHead(view.head ?? [0, 0], l, h) ? 0 : -1;
  }));
  for (const button of $("pictures").children) {
    button.setAttribute("aria-pressed", Number(button.dataset.index) === view.picture);
  }
  for (const box of $("terms").querySelectorAll("input")) {
    box.checked = view.terms.has(box.value);
    box.disabled = !atEnd() && data.contentTerms.includes(box.value);
  }
  const title = view.softmax ? "Where the query looks" : "Scores of all heads";
  $("heads-title").textContent = showsImages() ? "What each head hands on" : title;
  $("legend").hidden = showsImages();
  for (const button of $("tile-choice").children) button.setAttribute("aria-pressed", button.dataset.tiles === view.tiles);
  $("softmax").checked = view.softmax;
  $("common").checked = view.common;
  document.querySelectorAll(".layer-on").forEach((box, l) => { box.checked = !view.skipped.has(l); });
  if (view.epoch !== null) {
    $("epoch").value = view.epoch;
    $("epoch-text").textContent = `${data.epochs[view.epoch].epoch} of ${data.epochs[lastEpoch].epoch}`;
    $("epoch").setAttribute("aria-valuetext", `epoch ${data.epochs[view.epoch].epoch}`);
  }
  $("history-note").textContent = atEnd() ? "" : historyNote();
  const picture = data.pictures[view.picture];
  $("caption").textContent = picture ? [pictureName(picture), predictionText(picture)].filter(Boolean).join(" · ") : "";
}

/** What an earlier epoch shows less exactly than the last one. */
function historyNote() {
  const recorded = data.epochs[view.epoch].layers[0].position.kind;
  const position = recorded === data.layers[0].position.kind ? "" : "Gaussians as recorded";
  const others = data.contentTerms.length ? "without content" : "";
  return [position, others, network ? "probabilities with the last epoch only" : ""].filter(Boolean).join(", ");
}

function showReading(head, statistics, map) {
  const [row, column] = currentQuery();
  $("reading-title").textContent = head ? headName(head) : `Query pixel (${row}, ${column})`;
  $("query-text").textContent = head
    ? `From pixel (${row}, ${column}), ${peakText(map)}`
    : "";
  $("hint").hidden = head !== null;
  $("statistics").hidden = !head;
  if (!head || !$("more").open) return;
  $("statistics").tBodies[0].replaceChildren(...parameterRow(...head), ...STATISTICS.map(([label, unit, text]) => make("tr", {},
    make("th", { scope: "row", textContent: label, title: unit }),
    make("td", { textContent: text(statistics) }))));
}

/** The centre of a quadratic head, trained or moved, which knows no border; no row for other encodings. */
function parameterRow(layer, head) {
  if (!data.layers[layer].position?.centre) return [];
  const [row, column] = shownLayer(layer).position.centre[head];
  return [make("tr", {},
    make("th", { scope: "row", textContent: "Parameter", title: "the centre of its Gaussian: rows, columns from the query pixel" }),
    make("td", { textContent: `${signed(row)}, ${signed(column)}` }))];
}

/** Where a map is highest, in words. */
function peakText(map) {
  const [, high] = extent(map);
  const at = map.indexOf(high);
  return `most at (${Math.floor(at / grid[1])}, ${at % grid[1]}): ${shortNumber(high)}`;
}

const shortNumber = (x) =>
  (x === 0 ? "0" : Math.abs(x) < 0.001 || Math.abs(x) >= 1e5 ? x.toExponential(1) : x.toPrecision(3)).replaceAll("-", "−");
