"use strict";
// Scores, attention and statistics: pure functions of the page's data, no drawing.
// A map is a Float64Array over key pixels, row by row. A query is [row, column].

/** Position scores of one head from `position` (see position_parameters in scores.py), added to `scores`. */
function addPositionScores(scores, position, head, query, grid) {
  const [height, width] = grid;
  const { kind } = position;
  if (kind === "axes" || kind === "quadratic") {
    const rows = axisScores(position, head, 0, query, grid), columns = axisScores(position, head, 1, query, grid);
    for (let k = 0, n = 0; k < height; k++) {
      for (let l = 0; l < width; l++, n++) scores[n] += rows[k] + columns[l];
    }
    return;
  }
  if (kind === "pixels") {
    const table = position.table[head][query[0] * width + query[1]];
    for (let n = 0; n < scores.length; n++) scores[n] += table[n];
    return;
  }
  const score = kind === "shifts" ? tableScore : gaussianScore;
  for (let k = 0, n = 0; k < height; k++) {
    for (let l = 0; l < width; l++, n++) scores[n] += score(position, head, k - query[0], l - query[1], grid);
  }
}

/** Scores of all keys along one axis, of an encoding whose score is a row score plus a column score. */
function axisScores(position, head, axis, query, grid) {
  const scores = new Float64Array(grid[axis]);
  const table = position.kind === "axes" ? position[axis === 0 ? "row" : "column"][head] : null;
  for (let n = 0; n < scores.length; n++) {
    const shift = n - query[axis];
    scores[n] = table ? table[shift + grid[axis] - 1]
      : -0.5 * position.spread[head] ** 2 * (shift - position.centre[head][axis]) ** 2;
  }
  return scores;
}

/** The score of one shift, key minus query, from a table of all shifts. */
const tableScore = ({ table }, head, row, column, grid) => table[head][row + grid[0] - 1][column + grid[1] - 1];

/** -1/2 |S^T (shift - centre)|^2. */
function gaussianScore({ centre, spread }, head, rowShift, columnShift) {
  const row = rowShift - centre[head][0], column = columnShift - centre[head][1];
  const factors = spread[head];
  const first = row * factors[0][0] + column * factors[1][0];
  const second = row * factors[0][1] + column * factors[1][1];
  return -0.5 * (first ** 2 + second ** 2);
}

/** Content scores of one head from its factors {rank, query, key}, added to `scores`. */
function addContentScores(scores, factors, query, grid) {
  const pixels = scores.length;
  const at = query[0] * grid[1] + query[1];
  for (let r = 0; r < factors.rank; r++) {
    const weight = factors.query[r * pixels + at];
    for (let n = 0; n < pixels; n++) {
      scores[n] += weight * factors.key[r * pixels + n];
    }
  }
}

/** Position scores of one head for a query; null where the layer has none or their term is not among `terms`. */
function headPositionScores({ position }, head, query, grid, terms) {
  if (!position || !terms.has(position.term)) return null;
  const scores = new Float64Array(grid[0] * grid[1]);
  addPositionScores(scores, position, head, query, grid);
  return scores;
}

/** The sum of one head's content scores, of those `terms` that `factors` has; null where it has none. */
function headContentScores(factors, query, grid, terms) {
  const chosen = Object.keys(factors ?? {}).filter((term) => terms.has(term));
  if (chosen.length === 0) return null;
  const scores = new Float64Array(grid[0] * grid[1]);
  for (const term of chosen) addContentScores(scores, factors[term], query, grid);
  return scores;
}

/** The sum of one head's scores for a query, of the chosen terms. `factors`: {term: {rank, query, key}} or null. */
function headScores(layer, head, factors, query, grid, terms) {
  const position = headPositionScores(layer, head, query, grid, terms) ?? new Float64Array(grid[0] * grid[1]);
  const content = headContentScores(factors, query, grid, terms);
  return content === null ? position : position.map((score, n) => score + content[n]);
}

/** Attention of one head for a query. Where the layer has gates, they weigh the attention by position and the one by
    content; else scores are added before one softmax. */
function headProbabilities(layer, head, factors, query, grid, terms) {
  if (!layer.gate) return softmax(headScores(layer, head, factors, query, grid, terms));
  const position = headPositionScores(layer, head, query, grid, terms);
  const content = headContentScores(factors, query, grid, terms);
  if (position === null || content === null) return softmax(position ?? content ?? new Float64Array(grid[0] * grid[1]));
  const gate = layer.gate[head];
  const [byPosition, byContent] = [softmax(position), softmax(content)];
  return byPosition.map((share, n) => gate * share + (1 - gate) * byContent[n]);
}

/** Softmax over all keys. */
function softmax(scores) {
  let largest = -Infinity, sum = 0;
  for (let n = 0; n < scores.length; n++) if (scores[n] > largest) largest = scores[n];
  const result = new Float64Array(scores.length);
  for (let n = 0; n < scores.length; n++) sum += result[n] = Math.exp(scores[n] - largest);
  for (let n = 0; n < scores.length; n++) result[n] /= sum;
  return result;
}

/** [smallest, largest] value of a map. */
function extent(map) {
  let low = Infinity, high = -Infinity;
  for (const value of map) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

/** Statistics of one map of attention, which all can be averaged over queries: centre of mass relative to the
    query, covariance, mean attended distance (pixels), entropy (nats), share in the pixel nearest to the centre. */
function statisticsOf(map, query, grid) {
  let row = 0, column = 0, distance = 0, entropy = 0;
  forEachKey(map, grid, (p, k, l) => {
    row += p * k;
    column += p * l;
    distance += p * Math.hypot(k - query[0], l - query[1]);
    if (p > 0) entropy -= p * Math.log(p);
  });
  let rowRow = 0, rowColumn = 0, columnColumn = 0;
  forEachKey(map, grid, (p, k, l) => {
    rowRow += p * (k - row) ** 2;
    rowColumn += p * (k - row) * (l - column);
    columnColumn += p * (l - column) ** 2;
  });
  const atCentre = map[Math.round(row) * grid[1] + Math.round(column)];
  return { row: row - query[0], column: column - query[1], rowRow, rowColumn, columnColumn, distance, entropy, atCentre };
}

function forEachKey(map, grid, action) {
  for (let k = 0, n = 0; k < grid[0]; k++) {
    for (let l = 0; l < grid[1]; l++, n++) action(map[n], k, l);
  }
}

/** Standard deviations along the two main axes of a covariance, the larger one first. */
function mainAxes({ rowRow, rowColumn, columnColumn }) {
  const middle = (rowRow + columnColumn) / 2;
  const radius = Math.hypot((rowRow - columnColumn) / 2, rowColumn);
  return [middle + radius, middle - radius].map((variance) => Math.sqrt(Math.max(0, variance)));
}
