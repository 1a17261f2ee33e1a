"use strict";
// What a visitor changes about the network: heads switched off and moved, convolutions in place of layers. All of it is part of the view.

/** A layer's data with the centres and spreads that a visitor gave its heads.
    @type {(layer: Layer, number: number, moved: View['moved']) => Layer} */
function withMoves(layer, number, moved) {
  const { position } = layer;
  if (Object.keys(moved).length === 0 || !position?.centre) return layer;
  const moves = position.centre.map((centre, h) => moved[`${number},${h}`] ?? { centre, factor: 1 });
  const spread = position.spread.map((spread, h) => scaled(spread, moves[h].factor));
  return { ...layer, position: { ...position, centre: moves.map(({ centre }) => centre), spread } };
}

const scaled = (spread, factor) => (Array.isArray(spread) ? spread.map((row) => scaled(row, factor)) : spread * factor);

/** What of a view changes the network, for `forward`; `key` names what changes attention by positions.
    @type {(state: View) => Changes} */
const changesOf = ({ terms, off, moved, convolved }) =>
  ({ terms, off, convolved, key: JSON.stringify([[...terms], moved, convolved]) });

const layersOf = ({ moved }) => data.layers.map((layer, l) => withMoves(layer, l, moved));
/** Whether a view changes the network. */
const isChanged = ({ terms, off, moved, convolved }) =>
  convolved.layers > 0 || off.size > 0 || terms.size < data.terms.length || Object.keys(moved).length > 0;
const unchanged = () =>
  ({ terms: new Set(data.terms), off: new Set(), moved: {}, convolved: { layers: 0, size: view.convolved.size } });

/** Whether layers can be replaced by convolutions: attention has to be the same for all images. */
const canConvolve = () => network !== null && data.contentTerms.length === 0;
const KERNELS = [1, 3, 5, 7, 9];

/** Whether the chosen head has a centre that can be moved, in the network that is computed. */
const canMove = (head) => network !== null && head !== null && atEnd() && data.layers[head[0]].position?.centre !== undefined;

/** Where a head is moved to: its centre, and the factor of its spread.
    @type {(head: Head) => Move} */
const moveOf = (head) => view.moved[head.join()] ?? { centre: data.layers[head[0]].position.centre[head[1]], factor: 1 };

function move(head, changes) {
  choose({ moved: { ...view.moved, [head.join()]: limited({ ...moveOf(head), ...changes }) } });
}

/** A centre and a factor of the spread within what the page can compute: two sides of the image, 1/64 to 64.
    @type {(move: Move) => Move} */
function limited({ centre, factor }) {
  const within = (n, most, least = -most) => Math.max(least, Math.min(most, n));
  return { centre: centre.map((n) => within(n, 2 * Math.max(...grid))), factor: within(factor, 64, 1 / 64) };
}

/** Puts numbers into their fields, but for the one that is typed in. */
function showNumbers(fields, numbers, digits) {
  [...fields].forEach((field, n) => {
    if (document.activeElement !== field) field.value = Number(numbers[n].toFixed(digits));
  });
}

/** Puts into a field the number that is used where it has another one. */
function showLimited(field, used) {
  if (field.valueAsNumber !== used) field.value = used;
}

/** The panel of the chosen head, and the accuracy with and without the changes. */
function showChanges() {
  $("change").hidden = !network;
  $("convolution").hidden = !canConvolve();
  if (!network) return;
  $("change").inert = $("convolution").inert = !atEnd();
  const head = view.head;
  $("head-off").hidden = !head;
  $("change-hint").hidden = head !== null;
  $("move").hidden = !canMove(head);
  $("reset").disabled = !isChanged(view);
  $("head-on").checked = !view.off.has(String(head));
  $("head-on-name").textContent = head && headName(head);
  if (canMove(head)) {
    const { centre, factor } = moveOf(head);
    showNumbers([$("centre-row"), $("centre-column")], centre, 2);
    $("spread").value = Math.log2(factor);
    $("spread-text").textContent = `× ${factor.toFixed(2)}`;
  }
  const { layers, size } = view.convolved;
  $("layers").value = layers;
  $("layers-text").textContent = layers === 0 ? "no layer" : layers === 1 ? "layer 1" : `layers 1 to ${layers}`;
  $("kernel").value = size;
  showAccuracy();
}

function showAccuracy() {
  $("accuracy").hidden = !network.test;
  if (!network.test) return;
  const total = network.test.labels.length;
  const share = (count) => (count === null ? "…" : count.of < total ? `${count.right} of the first ${count.of}`
    : `${Math.round((1000 * count.right) / count.of) / 10}%`);
  const changed = isChanged(view) ? ` → ${share(accuracy.now)}${lossText(total)}` : "";
  const text = `Accuracy on ${total} test images: ${share(accuracy.original)}${changed}`;
  if ($("accuracy").textContent !== text) $("accuracy").textContent = text; // screen readers say what is put there
}

/** Where nothing but convolutions is changed: points lost outside of the kernels, and those that the border's zeros cost. */
function lossText(total) {
  const { original, now, truncated } = accuracy, others = { ...view, convolved: { ...view.convolved, layers: 0 } };
  if (!original || !now || !truncated || isChanged(others) || Math.min(now.of, truncated.of) < total) return "";
  const points = (more, less) => `${Math.round((1000 * (more.right - less.right)) / total) / 10}`.replace("-", "−");
  return ` (lost outside the kernel ${points(original, truncated)}, by zeros at the border ${points(truncated, now)})`;
}

function listenToChanges() {
  $("head-on").addEventListener("change", () => {
    const head = String(view.head), others = [...view.off].filter((other) => other !== head);
    choose({ off: new Set($("head-on").checked ? others : [...others, head]) });
  });
  ["centre-row", "centre-column"].forEach((id, axis) => {
    $(id).addEventListener("input", () => {
      const value = $(id).valueAsNumber;
      if (!Number.isFinite(value)) return;
      move(view.head, { centre: moveOf(view.head).centre.map((n, a) => (a === axis ? value : n)) });
      showLimited($(id), moveOf(view.head).centre[axis]);
    });
  });
  $("spread").addEventListener("input", () => move(view.head, { factor: 2 ** Number($("spread").value) }));
  $("reset").addEventListener("click", () => choose(unchanged()));
  $("kernel").append(...KERNELS.map((size) => make("option", { value: size, textContent: `${size} × ${size}` })));
  const convolve = (changes) => choose({ convolved: { ...view.convolved, ...changes } });
  $("layers").addEventListener("input", () => convolve({ layers: Number($("layers").value) }));
  $("kernel").addEventListener("change", () => convolve({ size: Number($("kernel").value), layers: view.convolved.layers || 1 }));
}
