"use strict";
// What is chosen, what is pointed at for the moment, and the numbers that follow from both.

const data = JSON.parse(document.getElementById("data").textContent);
const grid = data.grid;
const pixels = grid[0] * grid[1];
const lastEpoch = data.epochs.length - 1;
const MASKED = -1e29; // scores below stand for minus infinity, see LOWEST of scores.py

/** What a link restores. `head` [layer, head] lies over the picture; `common`: one colour scale for all heads;
    `epoch`: index into data.epochs, null where none are recorded; `off` (a Set of "layer,head"), `skipped` (a Set of
    layers), `moved` ({"layer,head": {centre, factor}}) and `convolved` (the first `layers` are convolutions of `size` x
    `size`): changes of the network; `layer`: whose centres are shown where no head is
    chosen; `tiles`: "image" or "map"; `step`: of STEPS, null beside them. */
const initialView = {
  picture: 0,
  query: [grid[0] >> 1, grid[1] >> 1],
  head: null,
  terms: new Set(data.terms),
  softmax: true,
  common: false,
  epoch: lastEpoch >= 0 ? lastEpoch : null,
  off: new Set(),
  skipped: new Set(),
  moved: {},
  convolved: { layers: 0, size: 3 },
  layer: 0,
  tiles: "image",
  step: null,
};
let view = initialView;

/** Pointed at or focused: goes before the view while it lasts. */
const pointed = { query: null, head: null };

/** Factors of the chosen picture's content scores; null until the network's first answer, and where there are none. */
let content = null;

const currentQuery = () => pointed.query ?? view.query;
const currentHead = () => pointed.head ?? view.head;
const contentIsMissing = () => content === null && data.contentTerms.length > 0 && data.pictures.length > 0;
const atEnd = () => view.epoch === null || view.epoch === lastEpoch;

/** A layer as it is shown: that of the checkpoint with the visitor's changes, or with the positions of an earlier epoch. */
function shownLayer(layer) {
  if (atEnd()) return withMoves(data.layers[layer], layer, view.moved);
  return { ...data.layers[layer], ...data.epochs[view.epoch].layers[layer] };
}

/** Content scores of one head, which earlier epochs do not have. */
const contentOf = (layer, head) => (content && atEnd() ? content[layer][head] : null);

/** Scores of one head for a query, the sum of the chosen terms. */
const scoresOf = (layer, head, query = currentQuery()) =>
  headScores(shownLayer(layer), head, contentOf(layer, head), query, grid, view.terms);

/** Attention of one head for a query: its own, or that of the convolution that is in its place. */
function probabilitiesOf(layer, head, query = currentQuery()) {
  const own = (from) => headProbabilities(shownLayer(layer), head, contentOf(layer, head), from, grid, view.terms);
  if (layer >= view.convolved.layers || !atEnd()) return own(query);
  const at = query[0] * grid[1] + query[1];
  return Float64Array.from(convolvedAttention(layer, head, own).subarray(at * pixels, (at + 1) * pixels));
}

/** Queries by keys, kept until the network is changed. */
function convolvedAttention(layer, head, own) {
  const { key } = changesOf(view);
  if (lastConvolved.key !== key) lastConvolved = { key, found: {} };
  return lastConvolved.found[[layer, head]] ??= (() => {
    const attention = Float32Array.from(Array.from({ length: pixels }, (_, q) => [...own([Math.floor(q / grid[1]), q % grid[1]])]).flat());
    return kernelAttention(shiftWeights(attention, view.convolved.size, grid), view.convolved.size, grid);
  })();
}

let lastConvolved = {};

/** What the page shows of one head: scores, or attention. */
const mapOf = (layer, head) => (view.softmax ? probabilitiesOf(layer, head) : scoresOf(layer, head));

/** The values that get the ends of the colour ramp. Attention: from zero to the largest, at least to four times what
    uniform attention has. Scores: from the lowest but 5%, since far pixels have scores far below all others; masked keys
    do not count. */
function rangeOf(map) {
  if (view.softmax) return [0, Math.max(extent(map)[1], Math.min(1, 4 / pixels))];
  const scores = map.filter((score) => score > MASKED).sort();
  return [scores[Math.floor(0.05 * scores.length)] ?? 0, scores.at(-1) ?? 0];
}

const queryStatistics = (layer, head) => statisticsOf(probabilitiesOf(layer, head), currentQuery(), grid);
