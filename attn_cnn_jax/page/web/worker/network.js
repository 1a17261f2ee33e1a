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

const bytesOfText = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0)); // base64

/** The numbers in a buffer, little-endian: float16 where `half`, else float32. */
function numbersOf(buffer, half) {
  return half ? Float32Array.from(new Uint16Array(buffer), (bits) => {
    const exponent = (bits >> 10) & 31, fraction = (bits & 1023) / 1024;
    const size = exponent ? (1 + fraction) * 2 ** (exponent - 15) : fraction * 2 ** -14;
    return bits >> 15 ? -size : size;
  }) : new Float32Array(buffer);
}

/** Bytes of an image, of squares of `size` pixels as windows(..., size, grid) has them.
    @type {(x: Floats, size: number, grid: Grid) => Uint8ClampedArray} */
function imageOfSquares(x, size, grid) {
  const pixels = grid[0] * grid[1], length = x.length / (pixels * size); // of one row of one square
  const bytes = new Uint8ClampedArray(x.length);
  for (let p = 0, from = 0; p < pixels; p++) for (let row = 0; row < size; row++, from += length) {
    bytes.set(x.subarray(from, from + length), ((Math.floor(p / grid[1]) * size + row) * grid[1] + (p % grid[1])) * length);
  }
  return bytes;
}

/** Windows around the middle of squares of `size` pixels as one pixel each, of the grid, with channels in the order (row, column,
    channel); beyond the border its pixels repeat. */
function windows(x, size, window, grid) {
  const [height, width] = grid.map((side) => side * size), channels = x.length / (height * width);
  const before = Math.floor((window - size) / 2), y = new Float32Array(grid[0] * grid[1] * window * window * channels);
  const place = (square, offset, side) => Math.min(Math.max(square * size - before + offset, 0), side - 1);
  for (let n = 0, to = 0; n < grid[0] * grid[1]; n++) for (let dy = 0; dy < window; dy++) {
    const row = place(Math.floor(n / grid[1]), dy, height);
    for (let dx = 0; dx < window; dx++, to += channels) {
      const from = (row * width + place(n % grid[1], dx, width)) * channels;
      y.set(x.subarray(from, from + channels), to);
    }
  }
  return y;
}

/** Activations before the first layer.
    @type {(bytes: Bytes, network: Network, grid: Grid) => Float32Array} */
function embed(bytes, { downsample, window, mean, std, embedding }, grid) {
  const x = Float32Array.from(bytes, (byte, n) => (byte / 255 - mean[n % mean.length]) / std[n % std.length]);
  return linear(windows(x, downsample, window, grid), embedding, grid[0] * grid[1]);
}

/** Content scores of a layer as factors[head][term] = {rank, query, key}; null where nothing reads the picture.
    @type {(x: Floats, readers: Block["readers"], heads: number, grid: Grid) => Factors[] | null} */
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
    adds to them, `position`; its map then has no bias.
    @type {(x: Floats, map: Linear | null, reader: Block["readers"][0], grid: Grid) => { content: Floats, position?: Floats } | null} */
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

  /** q . (row[delta_row] + column[delta_column]): a factor for every key row, then one for every key column. */
  shifts({ content: queries }, _, { row, column }, h, heads, [height, width]) {
    const pixels = height * width, size = queries.length / (heads * pixels), rank = height + width;
    const filled = (of) => Float32Array.from({ length: rank * pixels }, (_, n) => {
      const [r, p] = [Math.floor(n / pixels), n % pixels];
      return r < height ? of(row, height, r, Math.floor(p / width), p) : of(column, width, r - height, p % width, p);
    });
    const query = filled((table, side, k, i, q) => {
      const from = (q * heads + h) * size, at = (h * (2 * side - 1) + k - i + side - 1) * size;
      return product(queries.subarray(from, from + size), table.subarray(at, at + size));
    });
    return { rank, query, key: filled((table, side, k, i) => Number(k === i)) };
  },

  /** bias . k, the same for all queries. */
  keys(_, { content: keys }, { bias }, h, heads, grid) {
    const pixels = grid[0] * grid[1], rank = bias.length / heads;
    const query = Float32Array.from({ length: rank * pixels }, (_, n) => bias[h * rank + Math.floor(n / pixels)]);
    return { rank, query, key: ofHead(keys, h, heads, rank, 1) };
  },
};

/** The channels of one head, each over all pixels, times a number.
    @type {(x: Floats, h: number, heads: number, size: number, scale: number) => Float32Array} */
function ofHead(x, h, heads, size, scale) {
  const pixels = x.length / (heads * size);
  const result = new Float32Array(size * pixels);
  for (let p = 0; p < pixels; p++) {
    for (let c = 0; c < size; c++) result[c * pixels + p] = scale * x[(p * heads + h) * size + c];
  }
  return result;
}

/** Attention of every head of layer `l`, `maps`: queries by keys, one Float32Array a head; where the layer is a convolution
    also its `kernels`, which `maps` then are of. `layer`: see headProbabilities.
    @type {(layer: Layer, factors: Factors[] | null, grid: Grid, changes: Changes, l: number) => { maps: Float32Array[], kernels?: Float64Array[] }} */
function layerAttention(layer, factors, grid, { terms, convolved }, l) {
  const pixels = grid[0] * grid[1];
  const rows = (of) => {
    const map = new Float32Array(pixels * pixels);
    for (let q = 0; q < pixels; q++) map.set(of([Math.floor(q / grid[1]), q % grid[1]]), q * pixels);
    return map;
  };
  const maps = Array.from({ length: layer.heads }, (_, h) =>
    rows((query) => headProbabilities(layer, h, factors?.[h] ?? null, query, grid, terms)));
  if (l >= convolved.layers) return { maps };
  if (convolved.isTruncated) return { maps: maps.map((map) => truncated(map, convolved.size, grid)) };
  const kernels = maps.map((map) => shiftWeights(map, convolved.size, grid));
  return { maps: kernels.map((kernel) => rows((query) => kernelRow(kernel, query, grid))), kernels };
}

/** What the heads read, one head's channels after the other: zeros for those that are switched off.
    @type {(x: Floats, attention: Floats[], value: Linear | null, pixels: number, isOff: (h: number) => boolean) => Float32Array} */
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

/** One block: x = LN(x + attention(x)), x = LN(x + W2 activation(W1 x)). A pre-norm network, which has a `norm` of its
    own, has x + attention(`read`) and x + W2 activation(W1 LN(x)) in their place.
    @type {(x: Floats, read: Floats, weights: Block, attention: Floats[], pixels: number, network: Network, isOff: (h: number) => boolean) => Floats} */
function block(x, read, weights, attention, pixels, { epsilon, norm }, isOff) {
  let attended = linear(headAverages(read, attention, weights.value, pixels, isOff), weights.output, pixels);
  if (weights.dense) attended = linear(attended, weights.dense, pixels);
  const after = (sum, layer) => (norm ? sum : layerNorm(sum, layer, epsilon));
  x = after(add(x, attended), weights.attentionNorm);
  const fed = linear(norm ? layerNorm(x, weights.outputNorm, epsilon) : x, weights.intermediate, pixels).map(gelu);
  return after(add(x, linear(fed, weights.transformed, pixels)), weights.outputNorm);
}

/** The classifier on the mean over pixels.
    @type {(x: Floats, network: Network, pixels: number) => Float32Array} */
function logitsOf(x, { classifier, norm, epsilon }, pixels) {
  x = norm ? layerNorm(x, norm, epsilon) : x;
  return linear(sumOfRows(x, x.length / pixels).map((sum) => sum / pixels), classifier, 1);
}

/** Runs the network on a picture.

    network: with its weights; layers: {heads, position, gate} of each; bytes: of the picture; changes: `terms` (a Set
    of the score terms that count), `convolved` (the first `layers` are convolutions of `size` x `size`, or, where it
    `isTruncated`, attend inside such a window), `off` (a Set of "layer,head"); kept: attention of layers that does not
    depend on the image, filled here and read again while nothing is changed.

    Returns `logits` after each layer, the embedding first; `content`, factors of each layer's content scores;
    `attention`, of each layer's heads, and `kernels` of those that are convolutions.
    @type {(network: Network, layers: Layer[], grid: Grid, bytes: Bytes, changes: Changes, kept: any[]) => Partial<Answer>} */
function forward(network, layers, grid, bytes, changes, kept) {
  const pixels = grid[0] * grid[1];
  /** @type {Floats} */
  let x = embed(bytes, network, grid);
  const found = { logits: [logitsOf(x, network, pixels)], content: [], attention: [], kernels: [] };
  layers.forEach((layer, l) => {
    const weights = network.layers[l];
    const read = network.norm ? layerNorm(x, weights.attentionNorm, network.epsilon) : x;
    const factors = contentFactors(read, weights.readers, layer.heads, grid);
    const attention = kept[l] ?? layerAttention(layer, factors, grid, changes, l);
    if (!factors) kept[l] = attention;
    x = block(x, read, weights, attention.maps, pixels, network, (h) => changes.off.has(`${l},${h}`));
    found.logits.push(logitsOf(x, network, pixels));
    found.content.push(factors);
    found.attention.push(attention.maps);
    found.kernels.push(attention.kernels);
  });
  return found;
}
