"use strict";
// The view as text after the page's "#", so that a link restores it.

/** "#picture=2&query=3,7&head=1,4&terms=position&softmax=0&scale=common&epoch=12"; defaults are left out. */
function viewToHash(view, data) {
  const parts = [`picture=${view.picture}`, `query=${view.query.join()}`];
  if (view.head) parts.push(`head=${view.head.map((n) => n + 1).join()}`);
  if (view.terms.size < data.terms.length) parts.push(`terms=${[...view.terms].join() || "none"}`);
  if (!view.softmax) parts.push("softmax=0");
  if (view.common) parts.push("scale=common");
  if (view.epoch !== null && view.epoch < data.epochs.length - 1) parts.push(`epoch=${data.epochs[view.epoch].epoch}`);
  return "#" + parts.join("&");
}

/** The view that a hash names; what it doesn't name, or names wrongly, is as in `initial`. */
function viewFromHash(hash, initial, data) {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const within = (n, size) => Number.isInteger(n) && n >= 0 && n < size;
  const pair = (name) => (given.get(name) ?? "").split(",").map((part) => part === "" ? NaN : Number(part));
  const result = { ...initial };

  const picture = Number(given.get("picture") ?? NaN);
  if (within(picture, data.pictures.length)) result.picture = picture;

  const query = pair("query");
  if (query.length === 2 && query.every((n, axis) => within(n, data.grid[axis]))) result.query = query;

  const [layer, head] = pair("head").map((n) => n - 1);
  if (within(layer, data.layers.length) && within(head, data.layers[layer].heads)) result.head = [layer, head];

  const terms = given.get("terms");
  if (terms !== null) result.terms = new Set(data.terms.filter((term) => terms.split(",").includes(term)));
  if (given.has("softmax")) result.softmax = given.get("softmax") !== "0";
  if (given.has("scale")) result.common = given.get("scale") === "common";

  const epoch = data.epochs.findIndex((entry) => String(entry.epoch) === given.get("epoch"));
  if (epoch >= 0) result.epoch = epoch;
  return result;
}
