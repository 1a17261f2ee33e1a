"use strict";
// The view as text after the page's "#", so that a link restores it.

/** "#picture=2&query=3,7&head=1,4&terms=position&softmax=0&epoch=12", with changes of the network
    "&off=1.4&move=1.3:0.5:-1.2:1.5" (row, column, factor of the spread) and "&conv=2x3" (layers, kernel); "drawing=" and
    bytes in base64 in place of the picture, "&step=3" of the five; defaults are left out. */
function viewToHash() {
  const { terms, convolved } = view;
  const drawn = view.picture === drawing.index && textOfDrawing();
  const moves = Object.entries(view.moved).map(([key, { centre, factor }]) =>
    [fromOne(key), ...[...centre, factor].map((n) => Number(n.toFixed(3)))].join(":"));
  const parts = {
    drawing: drawn,
    picture: drawn ? "" : String(view.picture),
    query: view.query.join(),
    step: view.step !== null && view.step + 1,
    head: view.head && view.head.map((n) => n + 1).join(),
    terms: terms.size < data.terms.length && ([...terms].join() || "none"),
    softmax: !view.softmax && "0",
    epoch: !atEnd() && String(data.epochs[view.epoch].epoch),
    off: [...view.off].map(fromOne).join(),
    move: moves.join(),
    conv: convolved.layers > 0 && `${convolved.layers}x${convolved.size}`,
    tiles: view.tiles === "map" && "map",
  };
  return "#" + Object.entries(parts).filter(([, value]) => value).map((pair) => pair.join("=")).join("&");
}

/** "0,3", a layer and a head, as "1.4". */
const fromOne = (key) => key.split(",").map((n) => Number(n) + 1).join(".");

/** The view that a hash names; what it doesn't name, or names wrongly, is as the page starts or as its step has it.
    @type {(hash: string) => View} */
function viewFromHash(hash) {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const list = (name) => (given.get(name) ?? "").split(",").filter(Boolean);
  const within = (n, size) => Number.isInteger(n) && n >= 0 && n < size;
  /** @type {(text: string, separator: string) => Head | null} */
  const headOf = (text, separator) => {
    const [l, h] = text.split(separator).map((n) => Number(n) - 1);
    return within(l, data.layers.length) && within(h, data.layers[l].heads) ? [l, h] : null;
  };
  const step = Number(list("step")) - 1;
  const isStep = within(step, shownSteps().length);
  const isAlone = isStep && [...given.keys()].every((name) => ["step", "picture", "query"].includes(name));
  const result = { ...initialView, ...(isAlone ? viewOfStep(step) : {}), step: isStep ? step : null };
  const put = (name, value, isValid) => { if (isValid) result[name] = value; };

  const picture = Number(list("picture")), query = list("query").map(Number);
  put("picture", picture, within(picture, data.pictures.length));
  if (given.has("drawing") && canDraw()) result.picture = drawingOfText(given.get("drawing")) ?? result.picture;
  put("query", query, query.length === 2 && query.every((n, axis) => within(n, grid[axis])));
  put("head", headOf(given.get("head") ?? "", ","), given.has("head"));
  put("terms", new Set(data.terms.filter((term) => list("terms").includes(term))), given.has("terms"));
  put("softmax", false, given.get("softmax") === "0");
  put("tiles", "map", given.get("tiles") === "map");
  const epoch = data.epochs.findIndex((entry) => String(entry.epoch) === given.get("epoch"));
  put("epoch", epoch, epoch >= 0);
  if (!network || isAlone) return result;

  const [layers, size] = (given.get("conv") ?? "").split("x").map(Number);
  put("convolved", { layers, size }, canConvolve() && within(layers, data.layers.length + 1) && KERNELS.includes(size));
  result.off = new Set(list("off").map((text) => headOf(text, ".")).filter(Boolean).map(String));
  result.moved = {};
  for (const [text, ...numbers] of list("move").map((part) => part.split(":"))) {
    const head = headOf(text, "."), [row, column, factor] = numbers.map(Number);
    if (!head || ![row, column, factor].every(Number.isFinite) || factor <= 0) continue;
    result.moved[head.join()] = limited({ centre: [row, column], factor });
  }
  return result;
}
