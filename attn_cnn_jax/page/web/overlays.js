"use strict";
// What lies over the image: the attention of a head, or where all heads of a layer look.

const hasCentres = () => [data, ...data.epochs.slice(0, 1)].some(({ layers }) => layers?.some((layer) => layer.position?.centre));

/** What to draw over the image: {map, range, centre, handle} of a head, or else {centres} of the layer last looked at. */
function overlayOf(head, map, range, statistics) {
  if (!head) return { centres: centresOf(view.layer) };
  const centre = view.softmax ? [statistics.row, statistics.column] : null;
  const handle = canMove(view.head) && isHead(view.head, ...head) ? moveOf(head).centre : null;
  return { map, range, centre, handle };
}

/** Centres of a layer's heads, as shifts from the query: {centre, name, radius}, of one standard deviation. They are
    parameters, or else as recorded. */
function centresOf(layer) {
  const { heads, ...shown } = shownLayer(layer);
  const position = shown.position?.centre ? shown.position : data.epochs[view.epoch]?.layers?.[layer].position;
  if (!position?.centre) return [];
  return Array.from({ length: heads }, (_, h) => {
    const spread = position.spread[h];
    const size = Array.isArray(spread) ? Math.sqrt(Math.abs(spread[0][0] * spread[1][1] - spread[0][1] * spread[1][0])) : spread;
    return { centre: position.centre[h], name: String(h + 1), radius: 1 / Math.max(Math.abs(size), 1e-6) };
  });
}

/** One line below the image that says what lies over it. */
const overlayText = (head) => (head || centresOf(view.layer).length === 0 ? ""
  : `Where the heads of layer ${view.layer + 1} look from here; a ring's radius is one standard deviation.`);
