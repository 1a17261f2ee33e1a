"use strict";
// What is chosen, what is pointed at for the moment, and the numbers that follow from both.

const data = JSON.parse(document.getElementById("data").textContent);
const grid = data.grid;
const pixels = grid[0] * grid[1];
const lastEpoch = data.epochs.length - 1;

/** What a link restores. `head` [layer, head] lies over the picture; `common`: one colour scale for all heads;
    `epoch`: index into data.epochs, null where none are recorded. */
const initialView = {
  picture: 0,
  query: [grid[0] >> 1, grid[1] >> 1],
  head: null,
  terms: new Set(data.terms),
  softmax: true,
  common: false,
  epoch: lastEpoch >= 0 ? lastEpoch : null,
};
let view = initialView;

/** Pointed at or focused: goes before the view while it lasts. */
const pointed = { query: null, head: null };

/** Factors of the chosen picture's content scores; null while they are unpacked, and where there are none. */
let content = null;

const currentQuery = () => pointed.query ?? view.query;
const currentHead = () => pointed.head ?? view.head;
const contentIsMissing = () => content === null && data.contentTerms.length > 0;
const atEnd = () => view.epoch === null || view.epoch === lastEpoch;

/** Position scores of one head for a query; null where that term is not chosen. */
function positionScoresOf(layer, head, query) {
  const position = (atEnd() ? data : data.epochs[view.epoch]).layers[layer].position;
  if (!position || !view.terms.has(position.term)) return null;
  const scores = new Float64Array(pixels);
  addPositionScores(scores, position, head, query, grid);
  return scores;
}

/** The sum of the chosen content scores of one head for a query; null where none is chosen. */
function contentScoresOf(layer, head, query) {
  const terms = content && atEnd() ? data.contentTerms.filter((term) => view.terms.has(term)) : [];
  if (terms.length === 0) return null;
  const scores = new Float64Array(pixels);
  for (const term of terms) addContentScores(scores, content[layer][head][term], query, grid);
  return scores;
}

/** Scores of one head for a query, the sum of the chosen terms. */
function scoresOf(layer, head, query = currentQuery()) {
  const position = positionScoresOf(layer, head, query) ?? new Float64Array(pixels);
  const others = contentScoresOf(layer, head, query);
  return others === null ? position : position.map((score, n) => score + others[n]);
}

/** Attention of one head for a query. Where the network has gates, it weighs the attention by position and the one by
    content; else scores are added before one softmax. */
function probabilitiesOf(layer, head, query = currentQuery()) {
  const gate = data.layers[layer].gate;
  if (!gate) return softmax(scoresOf(layer, head, query));
  const position = positionScoresOf(layer, head, query);
  const others = contentScoresOf(layer, head, query);
  if (position === null || others === null) return softmax(position ?? others ?? new Float64Array(pixels));
  const [byPosition, byContent] = [softmax(position), softmax(others)];
  return byPosition.map((share, n) => gate[head] * share + (1 - gate[head]) * byContent[n]);
}

/** What the page shows of one head: scores, or attention. */
const mapOf = (layer, head) => (view.softmax ? probabilitiesOf(layer, head) : scoresOf(layer, head));

/** The values that get the ends of the colour ramp: attention from zero, scores from their lowest. */
function rangeOf(map) {
  const [low, high] = extent(map);
  return view.softmax ? [0, high] : [low, high];
}

const queryStatistics = (layer, head) => statisticsOf(probabilitiesOf(layer, head), currentQuery(), grid);

/** Statistics averaged over all query pixels; kept until something but the query changes. */
function meanStatistics(layer, head) {
  const key = [layer, head, view.picture, content !== null, view.epoch, ...view.terms].join();
  if (lastMeans.key === key) return lastMeans.means;
  const means = {};
  for (let row = 0; row < grid[0]; row++) {
    for (let column = 0; column < grid[1]; column++) {
      const query = [row, column];
      const here = statisticsOf(probabilitiesOf(layer, head, query), query, grid);
      for (const name in here) means[name] = (means[name] ?? 0) + here[name] / pixels;
    }
  }
  lastMeans = { key, means };
  return means;
}

let lastMeans = {};
