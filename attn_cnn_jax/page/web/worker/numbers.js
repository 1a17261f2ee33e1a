"use strict";
// Scores and attention: pure functions of the page's data, no drawing.
// A map is a Float64Array over key pixels, row by row. A query is [row, column].

/** Position scores of one head for a query (see position_parameters in scores.py); null where the layer has none or their term
    is not among `terms`.
    @type {(layer: Layer, head: number, query: Pixel, grid: Grid, terms: Set<string>) => Float64Array | null} */
function headPositionScores({ position }, head, [i, j], [height, width], terms) {
  if (!position || !terms.has(position.term)) return null;
  const { kind, table, row, column, centre = [], spread = [] } = position;
  const middle = centre[head], factors = /** @type {any} */ (spread[head]);
  const scoreOf = {
    pixels: (k, l) => table[head][i * width + j][k * width + l],
    shifts: (k, l) => table[head][k - i + height - 1][l - j + width - 1],
    axes: (k, l) => row[head][k - i + height - 1] + column[head][l - j + width - 1],
    quadratic: (k, l) => -0.5 * factors ** 2 * ((k - i - middle[0]) ** 2 + (l - j - middle[1]) ** 2),
    gaussian: (k, l) => { // -1/2 |S^T (shift - centre)|^2
      const y = k - i - middle[0], x = l - j - middle[1];
      return -0.5 * ((y * factors[0][0] + x * factors[1][0]) ** 2 + (y * factors[0][1] + x * factors[1][1]) ** 2);
    },
  }[kind];
  const scores = new Float64Array(height * width);
  for (let k = 0, n = 0; k < height; k++) for (let l = 0; l < width; l++, n++) scores[n] = scoreOf(k, l);
  return scores;
}

/** The sum of one head's content scores, of those `terms` that `factors` has; null where it has none.
    @type {(factors: Factors | null, query: Pixel, grid: Grid, terms: Set<string>) => Float64Array | null} */
function headContentScores(factors, query, grid, terms) {
  const chosen = Object.keys(factors ?? {}).filter((term) => terms.has(term));
  if (chosen.length === 0) return null;
  const pixels = grid[0] * grid[1], at = query[0] * grid[1] + query[1];
  const scores = new Float64Array(pixels);
  for (const term of chosen) {
    const { rank, query: queries, key } = factors[term];
    for (let r = 0; r < rank; r++) {
      const weight = queries[r * pixels + at];
      for (let n = 0; n < pixels; n++) scores[n] += weight * key[r * pixels + n];
    }
  }
  return scores;
}

/** The sum of one head's scores for a query, of the chosen terms. `factors`: {term: {rank, query, key}} or null.
    @type {(layer: Layer, head: number, factors: Factors | null, query: Pixel, grid: Grid, terms: Set<string>) => Float64Array} */
function headScores(layer, head, factors, query, grid, terms) {
  const position = headPositionScores(layer, head, query, grid, terms) ?? new Float64Array(grid[0] * grid[1]);
  const content = headContentScores(factors, query, grid, terms);
  return content === null ? position : position.map((score, n) => score + content[n]);
}

/** Attention of one head for a query. Where the layer has gates, they weigh the attention by position and the one by
    content; else scores are added before one softmax.
    @type {(layer: Layer, head: number, factors: Factors | null, query: Pixel, grid: Grid, terms: Set<string>) => Float64Array} */
function headProbabilities(layer, head, factors, query, grid, terms) {
  const position = layer.gate && headPositionScores(layer, head, query, grid, terms);
  const content = layer.gate && headContentScores(factors, query, grid, terms);
  if (!position || !content) return softmax(headScores(layer, head, factors, query, grid, terms));
  const [byPosition, byContent] = [softmax(position), softmax(content)], gate = layer.gate[head];
  return byPosition.map((share, n) => gate * share + (1 - gate) * byContent[n]);
}

/** Softmax over all keys.
    @type {(scores: Floats) => Float64Array} */
function softmax(scores) {
  let largest = -Infinity, sum = 0;
  for (let n = 0; n < scores.length; n++) if (scores[n] > largest) largest = scores[n];
  const result = new Float64Array(scores.length);
  for (let n = 0; n < scores.length; n++) sum += result[n] = Math.exp(scores[n] - largest);
  for (let n = 0; n < scores.length; n++) result[n] /= sum;
  return result;
}

/** [smallest, largest] value of a map.
    @type {(map: Floats | number[]) => [smallest: number, largest: number]} */
const extent = (map) => [Math.min(...map), Math.max(...map)];

/** Centre of mass of one map of attention, [row, column] from the query pixel.
    @type {(map: Float64Array, query: Pixel, grid: Grid) => Pixel} */
function centreOfMass(map, [i, j], [, width]) {
  const mean = (value) => map.reduce((sum, share, n) => sum + share * value(n), 0);
  return [mean((n) => Math.floor(n / width)) - i, mean((n) => n % width) - j];
}

/** Entropy of one map of attention, in nats.
    @type {(map: Float64Array) => number} */
const entropyOf = (map) => -map.reduce((sum, share) => (share > 0 ? sum + share * Math.log(share) : sum), 0);

/** Attention of one head along one axis, queries by keys, row by row: softmax of -sharpness (key - query - centre)^2 (eq. 9).
    Queries are 0 to `queries`, keys those from the first of `keys` to before the second.
    @type {(queries: number, keys: [first: number, end: number], centre: number, sharpness: number) => Float64Array} */
function axisAttention(queries, [first, end], centre, sharpness) {
  const weights = new Float64Array(queries * (end - first));
  for (let i = 0; i < queries; i++) {
    const score = (_, k) => -sharpness * (first + k - i - centre) ** 2;
    weights.set(softmax(Float64Array.from({ length: end - first }, score)), i * (end - first));
  }
  return weights;
}

/** @type {(a: Floats, b: Floats, from?: number, end?: number) => number} */
function product(a, b, from = 0, end = a.length) {
  let sum = 0;
  for (let n = from; n < end; n++) sum += a[n] * b[n];
  return sum;
}
