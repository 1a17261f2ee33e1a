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

/** Bytes of a picture (rows, columns, channels) as normalised numbers. */
const normalised = (bytes, { mean, std }) =>
  Float32Array.from(bytes, (byte, n) => (byte / 255 - mean[n % mean.length]) / std[n % std.length]);

/** Squares of `size` pixels as one pixel each, of the grid; channels in the order (row, column, channel). */
function spaceToDepth(x, size, grid) {
  const width = grid[1] * size;
  const channels = x.length / (grid[0] * size * width);
  const y = new Float32Array(x.length);
  let n = 0;
  for (let i = 0; i < grid[0]; i++) for (let j = 0; j < grid[1]; j++) {
    for (let dy = 0; dy < size; dy++) for (let dx = 0; dx < size; dx++) {
      const from = ((i * size + dy) * width + j * size + dx) * channels;
      for (let c = 0; c < channels; c++) y[n++] = x[from + c];
    }
  }
  return y;
}

/** Activations before the first layer. */
function embed(bytes, { downsample, mean, std, embedding }, grid) {
  const x = normalised(bytes, { mean, std });
  return linear(spaceToDepth(x, downsample, grid), embedding, grid[0] * grid[1]);
}

/** Content scores of a layer as factors[head][term] = {rank, query, key}; null where nothing reads the picture. */
function contentFactors(x, readers, heads, grid) {
  if (readers.length === 0) return null;
  const factors = Array.from({ length: heads }, () => ({}));
  for (const reader of readers) {
    const queries = projected(x, reader.query, reader, grid);
    const keys = projected(x, reader.key, reader, grid);
    for (const [name, term] of Object.entries(reader.terms)) {
      for (let h = 0; h < heads; h++) factors[h][name] = FACTORS[term.kind](queries, keys, term, h, heads, grid);
    }
  }
  return factors;
}

/** What a map of queries or keys makes of activations, `content`, and apart from them of the positions that a reader
    adds to them, `position`; its map then has no bias. */
function projected(x, map, { positions }, grid) {
  if (!map) return null;
  const pixels = grid[0] * grid[1], content = linear(x, map, pixels);
  return positions ? { content, position: linear(positions, map, pixels) } : { content };
}

const FACTORS = {
  /** q . k / sqrt(D_h). */
  product(queries, keys, term, h, heads, grid) {
    const [query, key] = [queries[term.query], keys[term.key]];
    const rank = query.length / (heads * grid[0] * grid[1]);
    return { rank, query: ofHead(query, h, heads, rank, rank ** -0.5), key: ofHead(key, h, heads, rank, 1) };
  },

  /** q . (row[delta_row] + column[delta_column]): a factor for every key row and every key column. */
  shifts({ content: queries }, _, { row, column }, h, heads, [height, width]) {
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
  keys(_, { content: keys }, { bias }, h, heads, grid) {
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

/** Attention of every head of layer `l`, queries by keys: one Float32Array a head. `layer`: see headProbabilities. */
function layerAttention(layer, factors, grid, { terms, convolved }, l) {
  const pixels = grid[0] * grid[1];
  return Array.from({ length: layer.heads }, (_, h) => {
    const attention = new Float32Array(pixels * pixels);
    for (let q = 0; q < pixels; q++) {
      const query = [Math.floor(q / grid[1]), q % grid[1]];
      attention.set(headProbabilities(layer, h, factors?.[h] ?? null, query, grid, terms), q * pixels);
    }
    if (l >= convolved.layers) return attention;
    return kernelAttention(shiftWeights(attention, convolved.size, grid), convolved.size, grid);
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

/** One block: x = LN(x + attention(x)), x = LN(x + W2 activation(W1 x)). */
function block(x, weights, attention, pixels, { epsilon }, isOff) {
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
    of the score terms that count), `convolved` (the first `layers` are convolutions of `size` x `size`), `off` (a Set of
    "layer,head") and `skipped` (a Set of layers); kept: attention of layers that does not depend on the image, filled here
    and read again while nothing is changed.

    Returns `logits` after each layer, the embedding first; `content`, factors of each layer's content scores; and
    `attention`, of each layer's heads. */
function forward(network, layers, grid, bytes, changes, kept) {
  const pixels = grid[0] * grid[1];
  let x = embed(bytes, network, grid);
  const found = { logits: [logitsOf(x, network.classifier, pixels)], content: [], attention: [] };
  layers.forEach((layer, l) => {
    const weights = network.layers[l];
    const factors = contentFactors(x, weights.readers, layer.heads, grid);
    const attention = kept[l] ?? layerAttention(layer, factors, grid, changes, l);
    if (!factors) kept[l] = attention;
    if (!changes.skipped.has(l)) {
      x = block(x, weights, attention, pixels, network, (h) => changes.off.has(`${l},${h}`));
    }
    found.logits.push(logitsOf(x, network.classifier, pixels));
    found.content.push(factors);
    found.attention.push(attention);
  });
  return found;
}
