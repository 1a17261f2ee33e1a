"use strict";
// What visitors do, and the start of the page.

const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const clamp = (n, size) => Math.max(0, Math.min(size - 1, n));
/** The run that the page came with. */
let ownData = null;
let ready = Promise.resolve(); // resolves when the network has answered for the chosen picture

/** Changes the view, shows it, and puts it into the address.
    @type {(changes: Partial<View>) => void} */
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

const changesNetwork = (changes) => ["terms", "off", "moved", "convolved"].some((name) => name in changes);

/** Points at a query pixel or a head for the moment; null ends that. */
function pointAt(what) {
  Object.assign(pointed, what);
  show();
}

const timers = {}; // of `later`, by name

/** Runs an action when nothing has asked for it again for some milliseconds. */
function later(name, milliseconds, action) {
  clearTimeout(timers[name]);
  timers[name] = setTimeout(action, milliseconds);
}

let addressed = null; // step and image of the address as it is

/** Puts the view into the address: another step or image as a new one, which the browser's Back takes back. */
function writeAddress() {
  if (location.protocol === "about:") return; // inside of a notebook
  const hash = viewToHash(), place = `${view.step} ${view.picture}`, isNew = place !== addressed && location.search !== "?figure";
  if (location.hash !== hash) history[isNew ? "pushState" : "replaceState"](null, "", hash);
  addressed = place;
}

/** For screen readers: the query pixel, and what the chosen head attends to from there. */
async function speak() {
  await ready; // before, the content of a picture that was just chosen is missing
  const head = view.head ? `${headName(view.head)}: ${peakText(mapOf(...view.head))}` : "";
  $("live").textContent = `Query pixel row ${view.query[0]}, column ${view.query[1]}. ${head}`;
}

// --- pointer ---

/** Where a pointer is on an element, as shares of it: [down, across].
    @type {(event: any, element?: any) => Place} */
function placeOf(event, element = $("picture")) {
  const box = element.getBoundingClientRect();
  return [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width];
}

/** The pixel of an image, shown by an element, that a pointer is on.
    @type {(event: any, element: any, size: Grid) => Pixel} */
const pixelAt = (event, element, size) =>
  placeOf(event, element).map((share, axis) => clamp(Math.floor(share * size[axis]), size[axis]));

/** Whether a pointer is on the handle of the chosen head's centre, which can be dragged. */
function isOnHandle(event) {
  if (!canMove(view.head)) return false;
  const { width, height } = $("picture"), scale = $("picture").getBoundingClientRect().width / width;
  const [x, y] = handlePlace($("picture"), grid, view.query, moveOf(view.head).centre), [down, across] = placeOf(event);
  return Math.hypot(across * width - x, down * height - y) * scale < (event.pointerType === "touch" ? 24 : 14);
}

/** The centre, as a shift from the query pixel, of a head that is dragged to where the pointer is. */
const centreAt = (event) => placeOf(event).map((share, axis) => share * grid[axis] - 0.5 - view.query[axis]);

function listenToPointer() {
  const picture = $("picture"), queryAt = (event) => pixelAt(event, picture, grid);
  let held = null, dragging = false; // the pointer that was pressed on the picture; whether on the handle of a centre
  picture.addEventListener("pointermove", (event) => {
    const isHeld = event.pointerId === held;
    if (drawing.isOn) return isHeld ? stroke(placeOf(event)) : undefined;
    if (isHeld && dragging) return canMove(view.head) ? move(view.head, { centre: centreAt(event) }) : undefined;
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
  /** @type {(event: any) => Head | null} */
  const headOf = ({ target }) => {
    const tile = target.closest(".head");
    return tile && [Number(tile.dataset.layer), Number(tile.dataset.head)];
  };
  $("heads").addEventListener("click", (event) => {
    const head = headOf(event);
    if (head) choose({ head: isHead(view.head, ...head) ? null : head, layer: head[0] });
  });
  for (const event of ["pointerover", "focusin"]) $("heads").addEventListener(event, (which) => pointAt({ head: headOf(which) }));
  for (const event of ["pointerleave", "focusout"]) $("heads").addEventListener(event, () => pointAt({ head: null }));
  $("pictures").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) choose({ picture: Number(button.dataset.index) });
  });
}

// --- keyboard ---

function listenToKeyboard() {
  document.addEventListener("keydown", (event) => {
    const isField = ["range", "number", "select-one", "radio"].includes(event.target.type);
    if (event.ctrlKey || event.altKey || event.metaKey || isField) return;
    if (event.key === "Escape") {
      pointed.head = null;
      choose({ head: null });
    }
    const arrow = ARROWS[event.key];
    if (!arrow || !event.target.closest("#picture, .head")) return;
    event.preventDefault();
    if (event.shiftKey) moveHead(arrow);
    else choose({ query: view.query.map((n, axis) => clamp(n + arrow[axis], grid[axis])) });
  });
}

/** Chooses the head next to the chosen one, and focuses it. */
function moveHead([down, right]) {
  const layer = view.head ? clamp(view.head[0] + down, data.layers.length) : 0;
  const head = view.head ? clamp(view.head[1] + right, data.layers[layer].heads) : 0;
  choose({ head: [layer, head] });
  tiles[layer][head].button.focus();
}

// --- settings ---

function listenToSettings() {
  $("terms").addEventListener("change", () => {
    choose({ terms: new Set(Array.from($("terms").querySelectorAll("input:checked"), (box) => box.value)) });
  });
  $("softmax").addEventListener("change", () => choose({ softmax: $("softmax").checked }));
  $("tile-choice").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) choose({ tiles: button.dataset.tiles });
  });
  $("more").addEventListener("toggle", show);
  $("epoch").addEventListener("input", () => choose({ epoch: Number($("epoch").value) }));
  addEventListener("popstate", () => { // Back and Forward, and a hash that was edited
    restore();
    choose(view);
  });
  darkness.addEventListener("change", show);
}

/** Makes the page of a run, what page_data of build.py returns, in place of another. */
function openRun(given) {
  setPlaying(false);
  setDrawing(false);
  setData(given);
  answered = classified = accuracy.original = null;
  forgetCount();
  answers.clear();
  computing = null;
  tiles.length = 0;
  Object.assign(drawing, NO_DRAWING);
  Object.assign(pointed, { query: null, head: null });
  $("close").hidden = data === ownData;
  for (const id of ["heads", "pictures", "terms", "lens-rows", "steps"]) $(id).replaceChildren();
  theorem.pixel = data.size.map((n) => n >> 1);
  makeHeading();
  makeHeads();
  makeSettings();
  makeSteps();
}

/** The view that the address names, or else the first step. */
function restore() {
  view = location.hash.length > 1 ? viewFromHash(location.hash) : viewOfStep(0);
  addressed = `${view.step} ${view.picture}`;
}

/** Shows the run that was made, with its pictures. */
async function begin() {
  data.pictures.forEach(makePicture);
  restore();
  (ask ? startNetwork : startWorker)();
  await Promise.all(data.pictures.map((picture) => picture.image.decode?.()));
  const first = view;
  ready = classify();
  await ready;
  if (view === first) restore(); // which heads a step chooses is known from now on, also where they read the picture
  showNow();
  countRight();
}

async function start() {
  ownData = data;
  openRun(data);
  for (const listen of [listenToPointer, listenToKeyboard, listenToSettings, listenToChanges, listenToOwn, listenToPlay,
    listenToFigure, listenToSteps, listenToTheorem, listenToFew, listenToStudent]) listen();
  await begin();
}

const started = new Promise((resolve) => { addEventListener("DOMContentLoaded", resolve); }).then(start);

// As a figure inside another page, `?figure`: the slider, the heads and the five steps. It says how high it is.
if (location.search === "?figure") {
  document.documentElement.classList.add("figure");
  const say = () => parent.postMessage({ height: document.body.getBoundingClientRect().height }, "*");
  new ResizeObserver(say).observe(document.body);
}
