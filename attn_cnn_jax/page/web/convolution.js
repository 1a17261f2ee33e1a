"use strict";
// Attention read as a convolution (theorem/to_convolution.py), and what a head hands on: pure functions.

/** The shifts that a kernel reads along one axis. */
const kernelAxis = (size) => Array.from({ length: size }, (_, n) => n - ((size - 1) >> 1));

/** Queries that the weight of each shift is read from along one axis: those whose window lies inside the image, or else the
    one in the middle, and of these the nearest for which the shift does not lead out of it; none for longer shifts. */
function queriesOfShifts(kernelSize, size) {
  const shifts = kernelAxis(kernelSize);
  const [first, end] = [-shifts[0], size - shifts.at(-1)];
  const inside = end > first ? Array.from({ length: end - first }, (_, n) => first + n) : [(size - 1) >> 1];
  return shifts.map((shift) => {
    if (Math.abs(shift) >= size) return [];
    const [low, high] = [Math.max(0, -shift), size - 1 - Math.max(0, shift)];
    return inside.map((n) => Math.max(low, Math.min(high, n)));
  });
}

/** Weights of a K x K kernel, row by row: attention (queries by keys) on each shift, mean over interior queries. */
function shiftWeights(attention, kernelSize, grid) {
  const pixels = grid[0] * grid[1], shifts = kernelAxis(kernelSize);
  const [rows, columns] = grid.map((size) => queriesOfShifts(kernelSize, size));
  return Float64Array.from({ length: kernelSize ** 2 }, (_, n) => {
    const [r, c] = [Math.floor(n / kernelSize), n % kernelSize];
    let sum = 0;
    for (const i of rows[r]) for (const j of columns[c]) {
      sum += attention[(i * grid[1] + j) * pixels + (i + shifts[r]) * grid[1] + j + shifts[c]];
    }
    return sum / Math.max(1, rows[r].length * columns[c].length);
  });
}

/** A kernel with zeros beyond the border as what each query takes of each key: queries by keys. */
function kernelAttention(weights, kernelSize, grid) {
  const pixels = grid[0] * grid[1], shifts = kernelAxis(kernelSize);
  const attention = new Float32Array(pixels * pixels);
  for (let q = 0; q < pixels; q++) {
    weights.forEach((weight, n) => {
      const row = Math.floor(q / grid[1]) + shifts[Math.floor(n / kernelSize)], column = (q % grid[1]) + shifts[n % kernelSize];
      if (row < 0 || column < 0 || row >= grid[0] || column >= grid[1]) return;
      attention[q * pixels + row * grid[1] + column] = weight;
    });
  }
  return attention;
}

/** What a head makes of an image: every square of `size` pixels is the mean of all squares, weighted by its attention. Bytes
    as `bytes`, (rows, columns, channels). */
function shiftedImage(bytes, attention, size, grid) {
  const pixels = grid[0] * grid[1], width = grid[1] * size;
  const channels = bytes.length / (grid[0] * size * width);
  const result = new Uint8ClampedArray(bytes.length);
  const starts = Array.from({ length: pixels }, (_, p) => (Math.floor(p / grid[1]) * width + (p % grid[1])) * size * channels);
  const row = size * channels, sum = new Float64Array(size * row);
  for (let q = 0; q < pixels; q++) {
    sum.fill(0);
    for (let p = 0; p < pixels; p++) {
      const share = attention[q * pixels + p];
      if (share < 1e-6) continue;
      for (let y = 0, n = 0; y < size; y++) {
        for (let x = starts[p] + y * width * channels, end = x + row; x < end; x++) sum[n++] += share * bytes[x];
      }
    }
    for (let y = 0; y < size; y++) result.set(sum.subarray(y * row, (y + 1) * row), starts[q] + y * width * channels);
  }
  return result;
}
