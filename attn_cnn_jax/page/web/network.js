"use strict";
// The network's forward pass, as models/classifier.py has it: pure functions of numbers, which the worker runs.
// Activations are Float32Arrays of pixels by channels, row by row; a linear map is {kernel, bias}, inputs by outputs.

const NEGLIGIBLE = 1e-10; // attention that changes no float32 number

/** A tree with every {at, shape} replaced by its weights. */
function withWeights(tree, weights) {
  if (Array.isArray(tree)) return tree.map((item) => withWeights(item, weights));
  if (tree === null || typeof tree !== "object") return tree;
  if ("at" in tree) return weights.subarray(tree.at, tree.at + tree.shape.reduce((product, n) => product * n, 1));
  return Object.fromEntries(Object.entries(tree).map(([name, item]) => [name, withWeights(item, weights)]));
}

/** Little-endian float32 numbers of a base64 text. */
function floatsOf(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

/** x W + b for every row of `x`; four inputs at once, so that sums are loaded and stored less often. */
function linear(x, { kernel, bias }, rows) {
  const inputs = x.length / rows;
  const outputs = kernel.length / inputs;
  const y = new Float32Array(rows * outputs);
  for (let row = 0; row < rows; row++) {
    const to = y.subarray(row * outputs, (row + 1) * outputs);
    if (bias) to.set(bias);
    const from = row * inputs;
    let i = 0;
    for (; i + 3 < inputs; i += 4) {
      const [a, b, c, d] = [x[from + i], x[from + i + 1], x[from + i + 2], x[from + i + 3]];
      if (a === 0 && b === 0 && c === 0 && d === 0) continue; // of heads that are switched off
      const [at, bt, ct, dt] = [i * outputs, (i + 1) * outputs, (i + 2) * outputs, (i + 3) * outputs];
      for (let o = 0; o < outputs; o++) {
        to[o] += a * kernel[at + o] + b * kernel[bt + o] + c * kernel[ct + o] + d * kernel[dt + o];
      }
    }
    for (; i < inputs; i++) {
      const factor = x[from + i], at = i * outputs;
      for (let o = 0; o < outputs; o++) to[o] += factor * kernel[at + o];
    }
  }
  return y;
}

/** Layer norm over channels. */
function layerNorm(x, { scale, bias }, epsilon) {
  const channels = scale.length;
  const y = new Float32Array(x.length);
  for (let start = 0; start < x.length; start += channels) {
    let mean = 0, variance = 0;
    for (let c = 0; c < channels; c++) mean += x[start + c] / channels;
    for (let c = 0; c < channels; c++) variance += (x[start + c] - mean) ** 2 / channels;
    const factor = 1 / Math.sqrt(variance + epsilon);
    for (let c = 0; c < channels; c++) y[start + c] = (x[start + c] - mean) * factor * scale[c] + bias[c];
  }
  return y;
}

const gelu = (x) => 0.5 * x * (1 + errorFunction(x * Math.SQRT1_2));

/** erf to 1.5e-7 (Abramowitz and Stegun, 7.1.26). */
function errorFunction(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  return Math.sign(x) * (1 - series * Math.exp(-x * x));
}

const add = (a, b) => a.map((value, n) => value + b[n]);

/** Bytes of a picture (rows, columns, channels) as normalised squares of pixels, the network's input. */
function inputOf(bytes, { downsample, mean, std }, grid) {
  const channels = mean.length;
  const width = grid[1] * downsample;
  const x = new Float32Array(bytes.length);
  let n = 0;
  for (let i = 0; i < grid[0]; i++) for (let j = 0; j < grid[1]; j++) {
    for (let dy = 0; dy < downsample; dy++) for (let dx = 0; dx < downsample; dx++) {
      const from = ((i * downsample + dy) * width + j * downsample + dx) * channels;
      for (let c = 0; c < channels; c++) x[n++] = (bytes[from + c] / 255 - mean[c]) / std[c];
    }
  }
  return x;
}

/** Content scores of a layer as factors[head][term] = {rank, query, key}; null where nothing reads the picture. */
function contentFactors(x, readers, heads, grid) {
  if (readers.length === 0) return null;
  const factors = Array.from({ length: heads }, () => ({}));
  const pixels = grid[0] * grid[1];
  for (const { add: vectors, query, key, terms } of readers) {
    const read = vectors ? add(x, vectors) : x;
    const queries = query && linear(read, query, pixels);
    const keys = key && linear(read, key, pixels);
    for (const [name, term] of Object.entries(terms)) {
      for (let h = 0; h < heads; h++) factors[h][name] = FACTORS[term.kind](queries, keys, term, h, heads, grid);
    }
  }
  return factors;
}

const FACTORS = {
  /** q . k / sqrt(D_h). */
  product(queries, keys, term, h, heads, grid) {
    const rank = queries.length / (heads * grid[0] * grid[1]);
    return { rank, query: ofHead(queries, h, heads, rank, rank ** -0.5), key: ofHead(keys, h, heads, rank, 1) };
  },

  /** q . (row[delta_row] + column[delta_column]): a factor for every key row and every key column. */
  shifts(queries, keys, { row, column }, h, heads, [height, width]) {
    const pixels = height * width, size = queries.length / (heads * pixels), rank = height + width;
    const [query, key] = [new Float32Array(rank * pixels), new Float32Array(rank * pixels)];
    const product = (q, table, at) => {
      let sum = 0;
      for (let c = 0; c < size; c++) sum += queries[(q * heads + h) * size + c] * table[at * size + c];
      return sum;
    };
    for (let q = 0; q < pixels; q++) {
      const [i, j] = [Math.floor(q / width), q % width];
      for (let k = 0; k < height; k++) query[k * pixels + q] = product(q, row, h * (2 * height - 1) + k - i + height - 1);
      for (let l = 0; l < width; l++) {
        query[(height + l) * pixels + q] = product(q, column, h * (2 * width - 1) + l - j + width - 1);
      }
      key[i * pixels + q] = 1;
      key[(height + j) * pixels + q] = 1;
    }
    return { rank, query, key };
  },

  /** bias . k, the same for all queries. */
  keys(queries, keys, { bias }, h, heads, grid) {
    const pixels = grid[0] * grid[1], size = bias.length / heads;
    const key = new Float32Array(pixels);
    for (let p = 0; p < pixels; p++) {
      for (let c = 0; c < size; c++) key[p] += bias[h * size + c] * keys[(p * heads + h) * size + c];
    }
    return { rank: 1, query: new Float32Array(pixels).fill(1), key };
  },
};

/** The channels of one head, each over all pixels, times a number. */
function ofHead(x, h, heads, size, scale) {
  const pixels = x.length / (heads * size);
  const result = new Float32Array(size * pixels);
  for (let p = 0; p < pixels; p++) {
    for (let c = 0; c < size; c++) result[c * pixels + p] = scale * x[(p * heads + h) * size + c];
  }
  return result;
}

/** Attention of every head, queries by keys: one Float32Array a head. `layer`: see headProbabilities. */
function layerAttention(layer, factors, grid, terms) {
  const pixels = grid[0] * grid[1];
  return Array.from({ length: layer.heads }, (_, h) => {
    const attention = new Float32Array(pixels * pixels);
    for (let q = 0; q < pixels; q++) {
      const query = [Math.floor(q / grid[1]), q % grid[1]];
      attention.set(headProbabilities(layer, h, factors?.[h] ?? null, query, grid, terms), q * pixels);
    }
    return attention;
  });
}

/** What the heads read, one head's channels after the other: zeros for those that are switched off. */
function headAverages(x, attention, value, pixels, isOff) {
  const values = value ? linear(x, value, pixels) : x;
  const heads = attention.length;
  const size = values.length / (pixels * (value ? heads : 1));
  const step = value ? heads * size : size; // from one pixel's values to the next one's
  const averages = new Float32Array(pixels * heads * size);
  for (let h = 0; h < heads; h++) {
    if (isOff(h)) continue;
    for (let q = 0; q < pixels; q++) {
      const to = averages.subarray((q * heads + h) * size, (q * heads + h + 1) * size);
      for (let p = 0; p < pixels; p++) {
        const share = attention[h][q * pixels + p];
        if (share < NEGLIGIBLE) continue;
        const from = p * step + (value ? h * size : 0);
        for (let c = 0; c < size; c++) to[c] += share * values[from + c];
      }
    }
  }
  return averages;
}

/** One block: x = LN(x + attention(x)), x = LN(x + W2 gelu(W1 x)). */
function block(x, weights, attention, pixels, epsilon, isOff) {
  let attended = linear(headAverages(x, attention, weights.value, pixels, isOff), weights.output, pixels);
  if (weights.dense) attended = linear(attended, weights.dense, pixels);
  x = layerNorm(add(x, attended), weights.attentionNorm, epsilon);
  const transformed = linear(linear(x, weights.intermediate, pixels).map(gelu), weights.transformed, pixels);
  return layerNorm(add(x, transformed), weights.outputNorm, epsilon);
}

/** The classifier on the mean over pixels. */
function logitsOf(x, classifier, pixels) {
  const channels = x.length / pixels;
  const mean = new Float32Array(channels);
  for (let n = 0; n < x.length; n++) mean[n % channels] += x[n] / pixels;
  return linear(mean, classifier, 1);
}

/** Runs the network on a picture.

    network: with its weights; layers: {heads, position, gate} of each; bytes: of the picture; changes: `terms` (a Set
    of the score terms that count), `off` (a Set of "layer,head") and `skipped` (a Set of layers); kept: attention of
    layers that does not depend on the picture, filled here and read again while nothing is changed.

    Returns `logits` after each layer, the embedding first; `pixelLogits`, the classifier on every pixel of the last
    one; `content`, factors of each layer's content scores; and `attention`, of each layer's heads. */
function forward(network, layers, grid, bytes, changes, kept) {
  const pixels = grid[0] * grid[1];
  let x = linear(inputOf(bytes, network, grid), network.embedding, pixels);
  const found = { logits: [logitsOf(x, network.classifier, pixels)], content: [], attention: [] };
  layers.forEach((layer, l) => {
    const weights = network.layers[l];
    const factors = contentFactors(x, weights.readers, layer.heads, grid);
    const attention = kept[l] ?? layerAttention(layer, factors, grid, changes.terms);
    if (!factors) kept[l] = attention;
    if (!changes.skipped.has(l)) {
      x = block(x, weights, attention, pixels, network.epsilon, (h) => changes.off.has(`${l},${h}`));
    }
    found.logits.push(logitsOf(x, network.classifier, pixels));
    found.content.push(factors);
    found.attention.push(attention);
  });
  found.pixelLogits = linear(x, network.classifier, pixels);
  return found;
}
