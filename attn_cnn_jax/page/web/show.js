"use strict";
// The elements of the page: made once, brought up to date by `show`.

/** @type {(id: string) => any} */
const $ = (id) => document.getElementById(id);
/** @type {{ button: any, canvas: HTMLCanvasElement }[][]} */
const tiles = []; // tiles[layer][head]: {button, canvas}
const darkness = matchMedia("(prefers-color-scheme: dark)");
const theme = () => (darkness.matches ? "dark" : "light");
const isHead = (head, layer, number) => head !== null && head[0] === layer && head[1] === number;
const headName = ([layer, head]) => `Layer ${layer + 1}, head ${head + 1}`;
const percent = (share) => `${share > 0 && share < 0.01 ? "<1" : Math.round(100 * share)}%`;
const fixed = (x) => x.toFixed(2);
const signed = (x) => (x < -0.005 ? "−" : "+") + fixed(Math.abs(x));
const termName = (term) => term.replace("_and_", " and ").replace("_", "–");

/** Frames a pixel in the images of an element.
    @type {(element: any, pixel: Pixel, size: Grid) => void} */
function frameAt(element, [row, column], [height, width]) {
  const place = { left: column / width, top: row / height, wide: 1 / width, high: 1 / height };
  for (const name in place) element.style.setProperty(`--${name}`, `${100 * place[name]}%`);
}

/** An element with properties and children; text given here is never read as HTML.
    @type {(tag: string, properties?: object, ...children: (Node | string)[]) => any} */
function make(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function makeHeading() {
  document.title = $("title").textContent = data.title;
  const counts = data.layers.map((layer) => layer.heads);
  const heads = new Set(counts).size === 1 ? counts[0] : counts.join(", ");
  const { dataset, encoding, step } = data.facts;
  $("facts").textContent = [
    dataset, `${encoding.replaceAll("_", " ")} encoding`, `${counts.length} layers of ${heads} heads`,
    `${grid[0]}×${grid[1]} ${data.size[0] > grid[0] ? "patches" : "pixels"}`, `step ${step}`,
  ].join(" · ");
}

function makeHeads() {
  const sizes = { most: Math.max(...data.layers.map((layer) => layer.heads)), layers: data.layers.length, aspect: grid[1] / grid[0] };
  for (const name in sizes) $("heads").style.setProperty(`--${name}`, sizes[name]);
  data.layers.forEach((layer, l) => {
    tiles.push(Array.from({ length: layer.heads }, (_, h) => {
      const canvas = make("canvas", { width: grid[1], height: grid[0] });
      const name = make("span", { className: "number", textContent: h + 1 });
      const button = make("button", { className: "head", type: "button" }, canvas, name);
      Object.assign(button.dataset, { layer: l, head: h });
      return { button, canvas };
    }));
    const row = make("div", { className: "row" }, ...tiles[l].map((tile) => tile.button)), textContent = `Layer ${l + 1}`;
    $("heads").append(make("div", { className: "layer", role: "group", ariaLabel: textContent }, make("h3", { textContent }), row));
  });
}

function makeSettings() {
  for (const term of data.terms) {
    $("terms").append(make("label", {}, make("input", { type: "checkbox", value: term }), ` ${termName(term)}`));
  }
  $("terms").parentNode.hidden = data.terms.length < 2;
  $("history").hidden = lastEpoch < 1;
  $("epoch").max = lastEpoch;
  $("layers").max = data.layers.length;
  $("draw").hidden = !canDraw();
  $("tile-choice").hidden = !canAsk();
  const unit = 640 / Math.max(...grid);
  Object.assign($("picture"), { width: Math.round(unit * grid[1]), height: Math.round(unit * grid[0]) });
}

/** Adds a picture's button; `picture.image` is what can be drawn of it. */
function makePicture(picture, index) {
  const name = pictureName(picture);
  picture.image = make("img", { src: picture.source, alt: "" });
  const button = make("button", { type: "button", title: name, ariaLabel: name }, picture.image);
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
  const centre = head && centreOfMass(probabilitiesOf(...head), currentQuery(), grid);
  const map = head && mapOf(...head);
  const image = drawing.isOn ? drawing.ink : data.pictures[view.picture]?.image;
  drawStage($("picture"), image, grid, currentQuery(), overlayOf(head, map, centre), colours, theme());
  $("overlay-text").textContent = overlayText(head);
  showReading(head, centre, map);
  showTheorem();
  showFew();
}

/** Whether tiles show what heads make of the image: not at earlier epochs, whose values are not recorded. */
const showsImages = () => view.tiles === "image" && answered !== null && atEnd();

/** Draws where the query looks, or the scores behind that, of every head; and the colours' legend. */
function showMaps(colours) {
  const maps = data.layers.map((layer, l) => Array.from({ length: layer.heads }, (_, h) => mapOf(l, h)));
  maps.forEach((layer, l) => layer.forEach((map, h) => drawMap(tiles[l][h].canvas, map, grid, rangeOf(map), colours)));
  drawMap($("ramp"), Array.from({ length: 64 }, (_, n) => n), [1, 64], [0, 63], colours);
  [$("low").textContent, $("high").textContent] = view.softmax ? ["0", "head’s largest"] : ["head’s lowest 5%", "head’s highest"];
}

/** Controls, marks and labels that say what is chosen. */
function showChoices() {
  const [row, column] = currentQuery();
  frameAt($("heads"), [row, column], grid);
  $("picture").ariaLabel = `Query pixel: row ${row}, column ${column}`;
  tiles.forEach((layer, l) => layer.forEach(({ button }, h) => {
    const isOff = view.off.has(`${l},${h}`);
    button.classList.toggle("off", isOff);
    button.ariaPressed = isHead(view.head, l, h);
    button.ariaLabel = `${headName([l, h])}${isOff ? ", off" : ""}`;
    button.tabIndex = isHead(view.head ?? [0, 0], l, h) ? 0 : -1;
  }));
  for (const button of $("pictures").children) button.ariaPressed = Number(button.dataset.index) === view.picture;
  for (const button of $("tile-choice").children) button.ariaPressed = button.dataset.tiles === view.tiles;
  for (const box of $("terms").querySelectorAll("input")) {
    box.checked = view.terms.has(box.value);
    box.disabled = !atEnd() && data.contentTerms.includes(box.value);
  }
  const title = view.softmax ? "Where the query looks" : "Scores of all heads";
  $("heads-title").textContent = showsImages() ? "Each head’s image" : title;
  $("legend").style.visibility = showsImages() ? "hidden" : ""; // keeps its place
  $("softmax").checked = view.softmax;
  if (view.epoch !== null) showEpoch(data.epochs[view.epoch], data.epochs[lastEpoch]);
  const picture = data.pictures[view.picture];
  $("closed-world").hidden = !network || !picture || picture.label !== "" || isEmptyDrawing(view.picture);
  if (network) $("closed-world").textContent = `It knows ${network.classes.length} classes, and names one of them whatever the image shows.`;
  $("caption").textContent = picture ? [pictureName(picture), predictionText(picture)].filter(Boolean).join(" · ") : "";
}

/** The epoch, and what an earlier one shows less exactly than the last.
    @type {(shown: PageData["epochs"][0], last: PageData["epochs"][0]) => void} */
function showEpoch({ epoch, layers }, last) {
  $("epoch").value = view.epoch;
  $("epoch").ariaValueText = `epoch ${epoch}`;
  $("epoch-text").textContent = `${epoch} of ${last.epoch}`;
  const isAsNow = layers?.[0].position.kind === data.layers[0].position.kind;
  $("history-note").textContent = atEnd() ? "Where heads looked, by epoch."
    : `Heads alone, without classes${isAsNow ? "." : "; as Gaussians."}`;
}

function showReading(head, centre, map) {
  const [row, column] = currentQuery();
  $("reading-title").textContent = head ? headName(head) : `Query pixel (${row}, ${column})`;
  $("query-text").textContent = head ? `From pixel (${row}, ${column}), ${peakText(map)}` : "";
  $("hint").hidden = head !== null;
  $("statistics").parentNode.hidden = !head;
  if (!head || !$("more").open) return;
  const rows = [["Centre", "centre of mass: rows, columns from the query pixel", centre]];
  const parameter = shownLayer(head[0]).position?.centre?.[head[1]]; // of a quadratic head, trained or moved: it knows no border
  if (parameter) rows.unshift(["Parameter", "the centre of its Gaussian: rows, columns from the query pixel", parameter]);
  $("statistics").replaceChildren(...rows.map(([textContent, title, place]) => make("tr", {},
    make("th", { scope: "row", textContent, title }), make("td", { textContent: place.map(signed).join(", ") }))));
}

/** Where a map is highest, in words. */
function peakText(map) {
  const [, high] = extent(map);
  const at = map.indexOf(high);
  return `most at (${Math.floor(at / grid[1])}, ${at % grid[1]}): ${shortNumber(high)}`;
}

const shortNumber = (x) =>
  (x === 0 ? "0" : Math.abs(x) < 0.001 || Math.abs(x) >= 1e5 ? x.toExponential(1) : x.toPrecision(3)).replaceAll("-", "−");
