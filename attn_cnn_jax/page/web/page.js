"use strict";
// What visitors do, and the start of the page.

const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const clamp = (n, size) => Math.max(0, Math.min(size - 1, n));
let ready = Promise.resolve(); // resolves when the chosen picture's content can be shown

/** Changes the view, shows it, and puts it into the address. */
function choose(changes) {
  const other = changes.picture !== undefined && changes.picture !== view.picture;
  view = { ...view, ...changes };
  if (other) ready = loadContent();
  show();
  later("address", 250, writeAddress); // browsers refuse many changes of the address in a short time
  if (changes.query || changes.head !== undefined) later("speech", 400, speak);
}

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
  const hash = viewToHash(view, data);
  if (location.hash !== hash) history.replaceState(null, "", hash);
}

/** For screen readers: the query pixel, and what the chosen head attends to from there. */
function speak() {
  const head = view.head ? `${headName(view.head)}: ${peakText({ map: mapOf(...view.head) })}` : "";
  $("live").textContent = `Query pixel row ${view.query[0]}, column ${view.query[1]}. ${head}`;
}

async function loadContent() {
  const picture = data.pictures[view.picture];
  content = null;
  if (!picture?.content) return;
  const unpacked = await unpackContent(picture.content, pixels, data.contentTerms);
  if (data.pictures[view.picture] === picture) content = unpacked; // unless another one was chosen meanwhile
  show();
}

// --- pointer ---

function queryAt(event) {
  const box = $("picture").getBoundingClientRect();
  const row = Math.floor(((event.clientY - box.top) / box.height) * grid[0]);
  const column = Math.floor(((event.clientX - box.left) / box.width) * grid[1]);
  return [clamp(row, grid[0]), clamp(column, grid[1])];
}

function listenToPointer() {
  const picture = $("picture");
  picture.addEventListener("pointermove", (event) => {
    // A finger that drags chooses; a mouse that hovers only points.
    if (event.buttons) choose({ query: queryAt(event) });
    else pointAt({ query: queryAt(event) });
  });
  picture.addEventListener("pointerdown", (event) => {
    picture.setPointerCapture(event.pointerId);
    choose({ query: queryAt(event) });
  });
  picture.addEventListener("pointerleave", () => pointAt({ query: null }));
  tiles.forEach((layer, l) => layer.forEach(({ button }, h) => {
    button.addEventListener("click", () => choose({ head: isHead(view.head, l, h) ? null : [l, h] }));
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
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.type === "range") return;
    if (event.key === "Escape") {
      pointed.head = null;
      choose({ head: null });
    }
    const arrow = ARROWS[event.key];
    if (!arrow) return;
    event.preventDefault();
    if (event.shiftKey) moveHead(arrow);
    else {
      pointed.query = null;
      choose({ query: view.query.map((n, axis) => clamp(n + arrow[axis], grid[axis])) });
    }
  });
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

// --- settings and pictures of one's own ---

function listenToSettings() {
  $("terms").addEventListener("change", () => {
    const chosen = [...$("terms").querySelectorAll("input:checked")].map((box) => box.value);
    choose({ terms: new Set(chosen) });
  });
  $("softmax").addEventListener("change", () => choose({ softmax: $("softmax").checked }));
  $("common").addEventListener("change", () => choose({ common: $("common").checked }));
  $("epoch").addEventListener("input", () => choose({ epoch: Number($("epoch").value) }));
  $("file").addEventListener("change", () => {
    addPicture($("file").files[0]);
    $("file").value = ""; // so that the same file, changed meanwhile, can be chosen again
  });
  addEventListener("hashchange", () => choose(viewFromHash(location.hash, initialView, data)));
  darkness.addEventListener("change", show);
  for (const [event, dropping] of [["dragover", true], ["dragleave", false], ["drop", false]]) {
    document.addEventListener(event, (what) => {
      what.preventDefault();
      document.body.classList.toggle("dropping", dropping);
      if (event === "drop") addPicture(what.dataTransfer.files[0]);
    });
  }
}

/** Adds a visitor's picture, cut and resized to the size of the others, and chooses it. */
async function addPicture(file) {
  if (!file) return;
  if (data.contentTerms.length) return complain($("own-not").textContent);
  $("error").hidden = true;
  try {
    const bitmap = await createImageBitmap(file);
    const [height, width] = data.size;
    const scale = Math.max(width / bitmap.width, height / bitmap.height);
    const canvas = make("canvas", { width, height });
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    if (data.channels === 1) context.filter = "grayscale(1)";
    const [w, h] = [bitmap.width * scale, bitmap.height * scale];
    context.drawImage(bitmap, (width - w) / 2, (height - h) / 2, w, h);
    data.pictures.push({ name: file.name, label: "", source: canvas.toDataURL(), content: null });
  } catch {
    return complain(`${file.name} cannot be read as a picture.`);
  }
  const index = data.pictures.length - 1;
  makePicture(data.pictures[index], index);
  await data.pictures[index].image.decode();
  choose({ picture: index });
}

function complain(text) {
  $("error").textContent = text;
  $("error").hidden = false;
}

async function start() {
  makeHeading();
  makeHeads();
  makeSettings();
  data.pictures.forEach(makePicture);
  view = viewFromHash(location.hash, initialView, data);
  listenToPointer();
  listenToKeyboard();
  listenToSettings();
  ready = loadContent();
  await Promise.all([ready, ...data.pictures.map((picture) => picture.image.decode())]);
  showNow();
}

const started = start();

/** For tests and the curious: numbers as the page shows them; layers, heads and pixels are counted from 0. */
window.viewer = {
  data,
  ready: () => started.then(() => ready),
  view: () => ({ ...view, terms: [...view.terms], query: currentQuery(), head: currentHead() }),
  probabilities: (layer, head) => Array.from(probabilitiesOf(layer, head)),
  scores: (layer, head) => Array.from(scoresOf(layer, head)),
  statistics: (layer, head) => ({ here: queryStatistics(layer, head), mean: meanStatistics(layer, head) }),
  setQuery: (row, column) => choose({ query: [row, column] }),
};
