"use strict";
// The view as text after the page's "#", so that a link restores it.

/** "#picture=2&query=3,7&head=1,4&terms=position&softmax=0&scale=common&epoch=12", with changes of the network
    "&off=1.4&skip=2&move=1.3:0.5:-1.2:1.5" (row, column, factor of the spread), "&conv=2x3" (layers, kernel) and
    "&layer=2" (whose centres are shown); "drawing=" and bytes in base64 in place of the picture, "&step=3" of the five; defaults
    are left out. */
function viewToHash(view, data) {
  const drawn = view.picture === drawing.index && drawing.index !== null && textOfDrawing();
  const parts = [drawn ? `drawing=${drawn}` : `picture=${view.picture}`, `query=${view.query.join()}`];
  if (view.step !== null) parts.push(`step=${view.step + 1}`);
  if (view.head) parts.push(`head=${view.head.map((n) => n + 1).join()}`);
  if (view.terms.size < data.terms.length) parts.push(`terms=${[...view.terms].join() || "none"}`);
  if (!view.softmax) parts.push("softmax=0");
  if (view.common) parts.push("scale=common");
  if (view.epoch !== null && view.epoch < data.epochs.length - 1) parts.push(`epoch=${data.epochs[view.epoch].epoch}`);
  if (view.off.size) parts.push(`off=${[...view.off].map(fromOne).join()}`);
  if (view.skipped.size) parts.push(`skip=${[...view.skipped].map((l) => l + 1).join()}`);
  const moved = Object.entries(view.moved).map(([key, { centre, factor }]) =>
    [fromOne(key), ...[...centre, factor].map((n) => Number(n.toFixed(3)))].join(":"));
  if (moved.length) parts.push(`move=${moved.join()}`);
  if (view.convolved.layers) parts.push(`conv=${view.convolved.layers}x${view.convolved.size}`);
  if (view.tiles !== "image") parts.push(`tiles=${view.tiles}`);
  if (view.layer) parts.push(`layer=${view.layer + 1}`);
  return "#" + parts.join("&");
}

/** "0,3", a layer and a head, as "1.4". */
const fromOne = (key) => key.split(",").map((n) => Number(n) + 1).join(".");

/** The view that a hash names; what it doesn't name, or names wrongly, is as in `initial`. */
function viewFromHash(hash, initial, data) {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const within = (n, size) => Number.isInteger(n) && n >= 0 && n < size;
  const pair = (name) => (given.get(name) ?? "").split(",").map((part) => part === "" ? NaN : Number(part));
  const step = Number(given.get("step") ?? NaN) - 1;
  const isStep = within(step, shownSteps().length);
  const isAlone = isStep && [...given.keys()].every((name) => ["step", "picture", "query"].includes(name));
  const result = { ...initial, ...(isAlone ? viewOfStep(step) : {}), step: isStep ? step : null };

  const picture = Number(given.get("picture") ?? NaN);
  if (within(picture, data.pictures.length)) result.picture = picture;
  if (given.has("drawing") && canDraw()) result.picture = drawingOfText(given.get("drawing")) ?? result.picture;

  const query = pair("query");
  if (query.length === 2 && query.every((n, axis) => within(n, data.grid[axis]))) result.query = query;

  const [layer, head] = pair("head").map((n) => n - 1);
  if (within(layer, data.layers.length) && within(head, data.layers[layer].heads)) result.head = [layer, head];

  const terms = given.get("terms");
  if (terms !== null) result.terms = new Set(data.terms.filter((term) => terms.split(",").includes(term)));
  if (given.has("softmax")) result.softmax = given.get("softmax") !== "0";
  if (given.has("scale")) result.common = given.get("scale") === "common";

  const list = (name) => (given.get(name) ?? "").split(",").filter(Boolean);
  const headOf = (text) => {
    const [l, h] = text.split(".").map((n) => Number(n) - 1);
    return within(l, data.layers.length) && within(h, data.layers[l].heads) ? `${l},${h}` : null;
  };
  if (data.network && !isAlone) {
    const [layers, size] = (given.get("conv") ?? "").split("x").map(Number);
    if (canConvolve && within(layers, data.layers.length + 1) && KERNELS.includes(size)) result.convolved = { layers, size };
    result.off = new Set(list("off").map(headOf).filter(Boolean));
    result.skipped = new Set(list("skip").map((n) => Number(n) - 1).filter((l) => within(l, data.layers.length)));
    result.moved = {};
    for (const [head, ...numbers] of list("move").map((text) => text.split(":"))) {
      const [row, column, factor] = numbers.map(Number);
      if (!headOf(head) || ![row, column, factor].every(Number.isFinite) || factor <= 0) continue;
      result.moved[headOf(head)] = limited({ centre: [row, column], factor });
    }
  }
  const shown = Number(given.get("layer") ?? NaN) - 1;
  if (within(shown, data.layers.length)) result.layer = shown;

  if (given.get("tiles") === "map") result.tiles = "map";
  const epoch = data.epochs.findIndex((entry) => String(entry.epoch) === given.get("epoch"));
  if (epoch >= 0) result.epoch = epoch;
  return result;
}
