"use strict";
// Maps of activations, pixels by channels in Float32Arrays, row by row: linear, layer norm, activations.
// A linear map is {kernel, bias}, inputs by outputs.

/** x W + b for every row of `x`; four inputs at once, so that sums are loaded and stored less often.
    @type {(x: Floats, map: Linear, rows: number) => Float32Array} */
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

/** Layer norm over channels.
    @type {(x: Floats, norm: Norm, epsilon: number) => Float32Array} */
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

/** The sum of all rows of so many columns.
    @type {(x: Floats, columns: number) => Float64Array} */
function sumOfRows(x, columns) {
  const sums = new Float64Array(columns);
  for (let n = 0; n < x.length; n++) sums[n % columns] += x[n];
  return sums;
}

const add = (a, b) => a.map((value, n) => value + b[n]);
