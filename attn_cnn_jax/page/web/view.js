"use strict";
// What is chosen, what is pointed at for the moment, and the numbers that follow from both.

const MASKED = -1e29; // scores below stand for minus infinity, see LOWEST of scores.py

/** What is known of the open run, see page_data in build.py, and parts of it; `network` is null where the page cannot compute.
    @type {PageData} */
let data, grid, pixels, lastEpoch, network;

/** What a link restores. `head` [layer, head] lies over the picture; `epoch`: index into data.epochs, null where none are
    recorded; `off` (a Set of "layer,head"), `moved` ({"layer,head": {centre, factor}}) and
    `convolved` (the first `layers` are convolutions of `size` x `size`): changes of the network; `layer`: whose centres are
    shown where no head is chosen, in no link; `tiles`: "image" or "map"; `step`: of STEPS, null beside them.
    @type {View} */
let view, initialView;

/** @param {PageData} given */
function setData(given) {
  data = given;
  ({ grid, network } = data);
  pixels = grid[0] * grid[1];
  lastEpoch = data.epochs.length - 1;
  view = initialView = {
    picture: 0,
    query: grid.map((n) => n >> 1),
    head: null,
    terms: new Set(data.terms),
    softmax: true,
    epoch: lastEpoch >= 0 ? lastEpoch : null,
    off: new Set(),
    moved: {},
    convolved: { layers: 0, size: 3 },
    layer: 0,
    tiles: /** @type {View["tiles"]} */ ("image"),
    step: null,
  };
}

setData(JSON.parse(document.getElementById("data").textContent));

/** Pointed at or focused: goes before the view while it lasts.
    @type {{ query: Pixel | null, head: Head | null }} */
const pointed = { query: null, head: null };

const currentQuery = () => pointed.query ?? view.query;
const currentHead = () => pointed.head ?? view.head;
const contentIsMissing = () => answered === null && data.contentTerms.length > 0 && data.pictures.length > 0;
const atEnd = () => view.epoch === null || view.epoch === lastEpoch;

/** A layer as it is shown: that of the checkpoint with the visitor's changes, or with the positions of an earlier epoch.
    @type {(layer: number) => Layer} */
function shownLayer(layer) {
  if (atEnd()) return withMoves(data.layers[layer], layer, view.moved);
  return { ...data.layers[layer], ...data.epochs[view.epoch].layers[layer] };
}

/** Factors of one head's content scores, which earlier epochs do not have. */
const contentOf = (layer, head) => (atEnd() ? answered?.content?.[layer]?.[head] : null);

/** Scores of one head for a query, the sum of the chosen terms. */
const scoresOf = (layer, head) =>
  headScores(shownLayer(layer), head, contentOf(layer, head), currentQuery(), grid, view.terms);

/** Attention of one head for a query: its own, or that of the convolution that is in its place.
    @type {(layer: number, head: number, query?: Pixel) => Float64Array} */
function probabilitiesOf(layer, head, query = currentQuery()) {
  const kernel = layer < view.convolved.layers && atEnd() && answered?.kernels[layer]?.[head];
  if (kernel) return kernelRow(kernel, query, grid);
  return headProbabilities(shownLayer(layer), head, contentOf(layer, head), query, grid, view.terms);
}

/** What the page shows of one head: scores, or attention.
    @type {(layer: number, head: number) => Float64Array} */
const mapOf = (layer, head) => (view.softmax ? probabilitiesOf(layer, head) : scoresOf(layer, head));

/** The values that get the ends of the colour ramp. Attention: from zero to the largest, at least to four times what
    uniform attention has. Scores: from the lowest but 5%, since far pixels have scores far below all others; masked keys
    do not count.
    @type {(map: Float64Array) => [low: number, high: number]} */
function rangeOf(map) {
  if (view.softmax) return [0, Math.max(extent(map)[1], Math.min(1, 4 / pixels))];
  const scores = map.filter((score) => score > MASKED).sort();
  return [scores[Math.floor(0.05 * scores.length)] ?? 0, scores.at(-1) ?? 0];
}

// --- what lies over the image: the attention of a head, or where all heads of a layer look ---

/** What to draw over the image: {map, range, centre, handle} of a head, or else {centres} of the layer last looked at.
    @type {(head: Head | null, map: Float64Array | null, mass: Pixel | null) => Overlay} */
function overlayOf(head, map, mass) {
  if (!head) return { centres: centresOf(view.layer) };
  const centre = view.softmax ? mass : null;
  const handle = canMove(view.head) && isHead(view.head, ...head) ? moveOf(head).centre : null;
  return { map, range: rangeOf(map), centre, handle };
}

/** Centres of a layer's heads, as shifts from the query: {centre, name, radius}, of one standard deviation. They are
    parameters, or else as recorded.
    @type {(layer: number) => { centre: Pixel, name: string, radius: number }[]} */
function centresOf(layer) {
  const shown = shownLayer(layer).position;
  const position = shown?.centre ? shown : data.epochs[view.epoch]?.layers?.[layer].position;
  return (position?.centre ?? []).map((centre, h) => {
    const spread = position.spread[h];
    const size = Array.isArray(spread) ? Math.sqrt(Math.abs(spread[0][0] * spread[1][1] - spread[0][1] * spread[1][0])) : spread;
    return { centre, name: String(h + 1), radius: 1 / Math.max(Math.abs(size), 1e-6) };
  });
}

/** One line below the image that says what lies over it. */
const overlayText = (head) => (head || centresOf(view.layer).length === 0 ? ""
  : `Where the heads of layer ${view.layer + 1} look from here; a ring's radius is one standard deviation.`);
