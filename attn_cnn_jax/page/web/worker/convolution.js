"use strict";
// Attention read as a convolution (theorem/to_convolution.py), and what a head hands on: pure functions.

/** @type {Pixel[]} */
const SHIFTS = Array.from({ length: 9 }, (_, n) => [Math.floor(n / 3) - 1, (n % 3) - 1]); // of a 3 x 3 kernel, row by row

/** The shifts that a kernel reads along one axis.
    @type {(size: number) => number[]} */
const kernelAxis = (size) => Array.from({ length: size }, (_, n) => n - ((size - 1) >> 1));

/** Queries that the weight of each shift is read from along one axis: those whose window lies inside the image, or else the
    one in the middle, and of these the nearest for which the shift does not lead out of it; none for longer shifts.
    @type {(kernelSize: number, size: number) => number[][]} */
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

/** Weights of a K x K kernel, row by row: attention (queries by keys) on each shift, mean over interior queries.
    @type {(attention: Floats, kernelSize: number, grid: Grid) => Float64Array} */
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

/** What a query takes of every key, of a K x K kernel with zeros beyond the border.
    @type {(weights: Floats, query: Pixel, grid: Grid) => Float64Array} */
function kernelRow(weights, query, grid) {
  const size = Math.sqrt(weights.length), shifts = kernelAxis(size), row = new Float64Array(grid[0] * grid[1]);
  weights.forEach((weight, n) => {
    const [k, l] = [query[0] + shifts[Math.floor(n / size)], query[1] + shifts[n % size]];
    if (k >= 0 && l >= 0 && k < grid[0] && l < grid[1]) row[k * grid[1] + l] = weight;
  });
  return row;
}

/** Attention, queries by keys, inside the K x K window of each query, and zero outside.
    @type {(attention: Float32Array, kernelSize: number, grid: Grid) => Float32Array} */
function truncated(attention, kernelSize, [height, width]) {
  const reach = (kernelSize - 1) >> 1, pixels = height * width;
  return attention.map((share, n) => {
    const [q, p] = [Math.floor(n / pixels), n % pixels];
    const rows = Math.floor(p / width) - Math.floor(q / width), columns = (p % width) - (q % width);
    return Math.max(Math.abs(rows), Math.abs(columns)) <= reach ? share : 0;
  });
}

/** What a head makes of an image: every square of `size` pixels is the mean of all `squares` (see windows), weighted by its
    attention. Bytes: rows, columns, channels.
    @type {(squares: Floats, attention: Floats, size: number, grid: Grid) => Uint8ClampedArray} */
const shiftedImage = (squares, attention, size, grid) =>
  imageOfSquares(linear(attention, { kernel: squares, bias: null }, grid[0] * grid[1]), size, grid);
