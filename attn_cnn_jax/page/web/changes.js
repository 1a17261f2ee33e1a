"use strict";
// What a visitor changes about the network: heads and layers switched off, heads moved. All of it is part of the view.

/** A layer's data with the centres and spreads that a visitor gave its heads. */
function withMoves(layer, number, moved) {
  const keys = Object.keys(moved).filter((key) => key.startsWith(`${number},`));
  if (keys.length === 0 || !layer.position?.centre) return layer;
  const position = { ...layer.position, centre: [...layer.position.centre], spread: [...layer.position.spread] };
  for (const key of keys) {
    const head = Number(key.split(",")[1]);
    position.centre[head] = moved[key].centre;
    position.spread[head] = scaled(position.spread[head], moved[key].factor);
  }
  return { ...layer, position };
}

const scaled = (spread, factor) => (Array.isArray(spread) ? spread.map((row) => scaled(row, factor)) : spread * factor);

/** What of a view changes the network, for `forward`; `key` names what changes attention by positions. */
const changesOf = ({ terms, off, skipped, moved }) =>
  ({ terms, off, skipped, key: JSON.stringify([[...terms], moved]) });

const layersOf = ({ moved }) => data.layers.map((layer, l) => withMoves(layer, l, moved));
const isChanged = ({ terms, off, skipped, moved }) =>
  terms.size < data.terms.length || off.size > 0 || skipped.size > 0 || Object.keys(moved).length > 0;
const unchanged = () => ({ terms: new Set(data.terms), off: new Set(), skipped: new Set(), moved: {} });

/** A copy of a set, with an item if `present` and without it otherwise. */
function withItem(set, item, present) {
  const copy = new Set(set);
  if (present) copy.add(item);
  else copy.delete(item);
  return copy;
}

/** Whether the chosen head has a centre that can be moved, in the network that is computed. */
const canMove = (head) => network !== null && head !== null && atEnd() && data.layers[head[0]].position?.centre !== undefined;

/** Where a head is moved to: its centre, and the factor of its spread. */
const moveOf = (head) => view.moved[head.join()] ?? { centre: data.layers[head[0]].position.centre[head[1]], factor: 1 };

function move(head, changes) {
  choose({ moved: { ...view.moved, [head.join()]: { ...moveOf(head), ...changes } } });
}

/** The panel of the chosen head, and the accuracy with and without the changes. */
function showChanges() {
  $("change").hidden = !network || !atEnd();
  if ($("change").hidden) return;
  const head = view.head;
  $("head-off").hidden = !head;
  $("change-hint").hidden = head !== null;
  $("move").hidden = !canMove(head);
  $("reset").disabled = !isChanged(view);
  if (head) {
    $("head-on").checked = !view.off.has(head.join());
    $("head-on-name").textContent = headName(head);
  }
  if (canMove(head)) {
    const { centre, factor } = moveOf(head);
    for (const [id, value] of [["centre-row", centre[0]], ["centre-column", centre[1]]]) {
      if (document.activeElement !== $(id)) $(id).value = Number(value.toFixed(2));
    }
    $("spread").value = Math.log2(factor);
    $("spread-text").textContent = `× ${factor.toFixed(2)}`;
  }
  showAccuracy();
}

function showAccuracy() {
  $("accuracy").hidden = !network.test;
  if (!network.test) return;
  const share = (count) => (count === null ? "…" : `${Math.round((1000 * count.right) / count.of) / 10}%`);
  const changed = isChanged(view) ? ` → ${share(accuracy.now)}` : "";
  const text = `Accuracy on ${network.test.labels.length} test pictures: ${share(accuracy.original)}${changed}`;
  if ($("accuracy").textContent !== text) $("accuracy").textContent = text; // screen readers say what is put there
}

function listenToChanges() {
  $("head-on").addEventListener("change", () => {
    choose({ off: withItem(view.off, view.head.join(), !$("head-on").checked) });
  });
  for (const [id, axis] of [["centre-row", 0], ["centre-column", 1]]) {
    $(id).addEventListener("input", () => {
      const value = $(id).valueAsNumber;
      if (Number.isFinite(value)) move(view.head, { centre: moveOf(view.head).centre.map((n, a) => (a === axis ? value : n)) });
    });
  }
  $("spread").addEventListener("input", () => move(view.head, { factor: 2 ** Number($("spread").value) }));
  $("reset").addEventListener("click", () => choose(unchanged()));
  document.querySelectorAll(".layer-on").forEach((box, l) => {
    box.addEventListener("change", () => choose({ skipped: withItem(view.skipped, l, !box.checked) }));
  });
}
