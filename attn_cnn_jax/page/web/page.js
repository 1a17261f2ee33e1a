"use strict";
// What visitors do, and the start of the page.

const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const clamp = (n, size) => Math.max(0, Math.min(size - 1, n));
let ready = Promise.resolve(); // resolves when the network has answered for the chosen picture

/** Changes the view, shows it, and puts it into the address. */
function choose(changes) {
  const other = changes.picture !== undefined && changes.picture !== view.picture;
  const keepsStep = Object.keys(changes).every((name) => ["query", "picture"].includes(name));
  view = { ...view, ...(keepsStep ? {} : { step: null }), ...changes };
  $("error").hidden = true;
  if (changes.query) pointed.query = null; // what was chosen is shown, not where the mouse still rests
  if (other && view.picture !== drawing.index) setDrawing(false); // strokes would go to a picture that is not shown
  if (other || changesNetwork(changes)) ready = classify();
  if (network && changesNetwork(changes)) {
    forgetCount();
    later("count", 250, countRight);
  }
  show();
  later("address", 250, writeAddress); // browsers refuse many changes of the address in a short time
  if (changes.query || changes.head !== undefined) later("speech", 400, speak);
}

const changesNetwork = (changes) => ["terms", "off", "skipped", "moved", "convolved"].some((name) => name in changes);

/** Points at a query pixel or a head for the moment; null ends that. */
function pointAt(what) {
  Object.assign(pointed, what);
  show();
}

const timers = {};

/** Runs an action when nothing has asked for it again for some milliseconds. */
function later(name, milliseconds, action) {
  clearTimeout(timers[name]);
  timers[name] = setTimeout(action, milliseconds);
}

function writeAddress() {
  if (location.protocol === "about:") return; // inside of a notebook
  const hash = viewToHash(view, data);
  if (location.hash !== hash) history.replaceState(null, "", hash);
}

/** For screen readers: the query pixel, and what the chosen head attends to from there. */
async function speak() {
  await ready; // before, the content of a picture that was just chosen is missing
  const head = view.head ? `${headName(view.head)}: ${peakText(mapOf(...view.head))}` : "";
  $("live").textContent = `Query pixel row ${view.query[0]}, column ${view.query[1]}. ${head}`;
}

// --- pointer ---

function queryAt(event) {
  const box = $("picture").getBoundingClientRect();
  const row = Math.floor(((event.clientY - box.top) / box.height) * grid[0]);
  const column = Math.floor(((event.clientX - box.left) / box.width) * grid[1]);
  return [clamp(row, grid[0]), clamp(column, grid[1])];
}

/** Whether the picture shows a centre that can be dragged. */
const hasHandle = () => canMove(view.head);

/** Whether a pointer is on the handle of the chosen head's centre. */
function isOnHandle(event) {
  if (!hasHandle()) return false;
  const box = $("picture").getBoundingClientRect();
  const [x, y] = handlePlace($("picture"), grid, view.query, moveOf(view.head).centre);
  const scale = box.width / $("picture").width;
  return Math.hypot(event.clientX - box.left - x * scale, event.clientY - box.top - y * scale) < (event.pointerType === "touch" ? 24 : 14);
}

/** The centre, as a shift from the query pixel, of a head that is dragged to where the pointer is. */
function centreAt(event) {
  const box = $("picture").getBoundingClientRect();
  const row = ((event.clientY - box.top) / box.height) * grid[0] - 0.5;
  const column = ((event.clientX - box.left) / box.width) * grid[1] - 0.5;
  return [row - view.query[0], column - view.query[1]];
}

function placeOf(event) {
  const box = $("picture").getBoundingClientRect();
  return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
}

function listenToPointer() {
  const picture = $("picture");
  let held = null, dragging = false; // the pointer that was pressed on the picture; whether on the handle of a centre
  picture.addEventListener("pointermove", (event) => {
    const isHeld = event.pointerId === held;
    if (drawing.isOn) return isHeld ? stroke(placeOf(event)) : undefined;
    if (isHeld && dragging) return hasHandle() ? move(view.head, { centre: centreAt(event) }) : undefined;
    // A finger that drags chooses; a mouse that hovers only points, and near the handle of a centre not even that.
    if (isHeld) choose({ query: queryAt(event) });
    else if (held === null && !event.buttons) pointAt({ query: isOnHandle(event) ? null : queryAt(event) });
    picture.style.cursor = isOnHandle(event) ? "grab" : "";
  });
  picture.addEventListener("pointerdown", (event) => {
    if (held !== null) return; // a second finger
    held = event.pointerId;
    picture.setPointerCapture(held);
    if (drawing.isOn) return stroke(placeOf(event));
    dragging = isOnHandle(event);
    if (dragging) pointed.query = null;
    else choose({ query: queryAt(event) });
  });
  for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) {
    picture.addEventListener(end, (event) => {
      if (event.pointerId !== held) return;
      held = drawing.last = null;
      dragging = false;
    });
  }
  picture.addEventListener("pointerleave", () => pointAt({ query: null }));
  tiles.forEach((layer, l) => layer.forEach(({ button }, h) => {
    button.addEventListener("click", () => choose({ head: isHead(view.head, l, h) ? null : [l, h], layer: l }));
    for (const event of ["pointerenter", "focus"]) button.addEventListener(event, () => pointAt({ head: [l, h] }));
    for (const event of ["pointerleave", "blur"]) button.addEventListener(event, () => pointAt({ head: null }));
  }));
  $("pictures").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) choose({ picture: Number(button.dataset.index) });
  });
}

// --- keyboard ---

function listenToKeyboard() {
  document.querySelector(".skip").addEventListener("click", skipToHeads);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || ["range", "number", "select-one"].includes(event.target.type)) return;
    if (event.key === "Escape") {
      pointed.head = null;
      choose({ head: null });
    }
    if (event.key === " " && drawing.isOn && event.target === $("picture")) {
      event.preventDefault();
      drawing.last = null;
      stroke([(view.query[1] + 0.5) / grid[1], (view.query[0] + 0.5) / grid[0]]);
    }
    const arrow = ARROWS[event.key];
    if (!arrow || !event.target.closest("#picture, .head")) return;
    event.preventDefault();
    if (event.shiftKey) moveHead(arrow);
    else choose({ query: view.query.map((n, axis) => clamp(n + arrow[axis], grid[axis])) });
  });
}

/** Focuses the head that Tab would reach. The link itself is not followed: the address holds the view. */
function skipToHeads(event) {
  event.preventDefault();
  const [layer, head] = view.head ?? [0, 0];
  tiles[layer][head].button.focus();
}

function moveHead([down, right]) {
  if (!view.head) return focusHead([0, 0]);
  const layer = clamp(view.head[0] + down, data.layers.length);
  focusHead([layer, clamp(view.head[1] + right, data.layers[layer].heads)]);
}

function focusHead([layer, head]) {
  choose({ head: [layer, head] });
  tiles[layer][head].button.focus();
}

// --- settings ---

function listenToSettings() {
  $("terms").addEventListener("change", () => {
    const chosen = [...$("terms").querySelectorAll("input:checked")].map((box) => box.value);
    choose({ terms: new Set(chosen) });
  });
  $("softmax").addEventListener("change", () => choose({ softmax: $("softmax").checked }));
  $("common").addEventListener("change", () => choose({ common: $("common").checked }));
  $("tile-choice").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) choose({ tiles: button.dataset.tiles });
  });
  $("more").addEventListener("toggle", show);
  $("epoch").addEventListener("input", () => choose({ epoch: Number($("epoch").value) }));
  addEventListener("hashchange", () => choose(viewFromHash(location.hash, initialView, data)));
  darkness.addEventListener("change", show);
}

async function start() {
  makeHeading();
  makeHeads();
  makeSettings();
  data.pictures.forEach(makePicture);
  makeSteps();
  view = location.hash ? viewFromHash(location.hash, initialView, data) : viewOfStep(0);
  if (canAsk) startWorker();
  listenToPointer();
  listenToKeyboard();
  listenToSettings();
  listenToChanges();
  listenToOwn();
  listenToPlay();
  listenToFigure();
  listenToSteps();
  listenToTheorem();
  await Promise.all(data.pictures.map((picture) => picture.image.decode?.()));
  ready = classify();
  await ready;
  showNow();
  countRight();
}

const started = start();

/** For tests and the curious: numbers as the page shows them; layers, heads and pixels are counted from 0. */
window.viewer = {
  data,
  ready: () => started.then(() => ready),
  view: () => ({ ...view, terms: [...view.terms], off: [...view.off], skipped: [...view.skipped], query: currentQuery(), head: currentHead() }),
  probabilities: (layer, head) => Array.from(probabilitiesOf(layer, head)),
  scores: (layer, head) => Array.from(scoresOf(layer, head)),
  statistics: queryStatistics,
  logits: (layer = -1) => Array.from(classified.logits.at(layer)),
  accuracy: () => ({ ...accuracy }),
  figureSvg,
  figurePng: async () => (await figurePng()).size,
  milliseconds: () => classified.milliseconds,
  setQuery: (row, column) => choose({ query: [row, column] }),
};
