"use strict";
// Attention learns a convolution (theorem/learning.py): error and gradients of a layer of attention, and Adam. Pure functions.
// Images are normal noise, so the mean squared error over all of them is a sum over pairs of heads: no image has to be drawn.

const LEARNING = { size: 12, margin: 3, channels: 8, rate: 0.02, steps: 3000, seed: 0, shown: 10 }; // shown: every 10th step
const INNER = LEARNING.size - 2 * LEARNING.margin; // queries along one axis, those that no border touches

/** Random numbers from a seed (mulberry32): functions that return `length` of them, `uniform` in ±`scale`, or `normal`. */
function randomNumbers(seed) {
  let state = seed;
  const next = () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
  const normal = () => Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next());
  return {
    uniform: (length, scale) => Float64Array.from({ length }, () => scale * (2 * next() - 1)),
    normal: (length, scale, middle = 0) => Float64Array.from({ length }, () => middle + scale * normal()),
  };
}

/** A layer as the paper initialises it: `centre` (heads, 2), `spread` (heads), `maps`, W of every head, (heads, D, D).
    @type {(heads: number, random: ReturnType<typeof randomNumbers>) => Student} */
function newStudent(heads, { normal, uniform }) {
  const { channels } = LEARNING;
  const maps = uniform(heads * channels ** 2, (heads * channels) ** -0.5);
  return { centre: normal(2 * heads, 2), spread: normal(heads, 0.01, 1), maps };
}

/** A kernel (3, 3, D, D) whose output has variance 1.
    @type {(random: ReturnType<typeof randomNumbers>) => Float64Array} */
const newTeacher = ({ normal }) => normal(9 * LEARNING.channels ** 2, (9 * LEARNING.channels) ** -0.5);

/** The gradients by centre and spread, from that by the attention along one axis.
    @type {(weights: Floats, byWeights: Floats, centre: number, spread: number) => [number, number]} */
function axisGradients(weights, byWeights, centre, spread) {
  const { size, margin } = LEARNING;
  /** @type {[number, number]} */
  const sums = [0, 0];
  for (let i = 0; i < INNER; i++) {
    const mean = product(weights, byWeights, i * size, (i + 1) * size);
    for (let k = 0; k < size; k++) {
      const byScore = weights[i * size + k] * (byWeights[i * size + k] - mean), distance = k - i - margin - centre;
      sums[0] += byScore * spread ** 2 * distance;
      sums[1] -= byScore * spread * distance ** 2;
    }
  }
  return sums;
}

function addTimes(sum, factor, x) {
  for (let n = 0; n < x.length; n++) sum[n] += factor * x[n];
}

/** All heads of a layer, as {axes, map}: attention along both axes, and W.
    @type {(layer: { centre: ArrayLike<number>, spread: ArrayLike<number>, maps: Float64Array }) => { axes: Float64Array[], map: Float64Array }[]} */
function headsOf({ centre, spread, maps }) {
  const { size, margin, channels } = LEARNING, numbers = channels ** 2;
  /** @type {[number, number]} */
  const keys = [-margin, size - margin];
  return Array.from(spread, (width, h) => ({
    axes: [0, 1].map((axis) => axisAttention(INNER, keys, centre[2 * h + axis], width ** 2 / 2)),
    map: maps.subarray(h * numbers, (h + 1) * numbers),
  }));
}

/** The nine entries of a kernel as heads that look at one pixel each, to be taken away from those of the student. */
const entriesOf = (kernel) =>
  headsOf({ centre: SHIFTS.flat(), spread: SHIFTS.map(() => 100), maps: kernel.map((weight) => -weight) });

/** The relative error |student - teacher| / |teacher|, root of the mean square over all images of noise, and the gradients of
    its square by parameter. `entries`: of the teacher.

    The difference is `sum_t A_t x W_t` over heads and entries `t`, and its mean square `sum_tu <A_t, A_u> <W_t, W_u>`, where
    `<A_t, A_u>` is a product of the two axes.
    @type {(student: Student, entries: ReturnType<typeof headsOf>) => { error: number, gradients: Student }} */
function errorAndGradients(student, entries) {
  const heads = headsOf(student), all = [...heads, ...entries];
  const whole = INNER ** 2 * entries.reduce((sum, { map }) => sum + product(map, map), 0);
  const gradients = /** @type {any} */ (Object.fromEntries(Object.entries(student).map(([name, x]) => [name, new Float64Array(x.length)])));
  let square = whole;
  heads.forEach((head, h) => {
    const byAxes = head.axes.map((axis) => new Float64Array(axis.length)), byMap = new Float64Array(head.map.length);
    all.forEach((other, n) => {
      const [rows, columns] = head.axes.map((axis, a) => product(axis, other.axes[a])), maps = product(head.map, other.map);
      square += (n < heads.length ? 1 : 2) * rows * columns * maps;
      addTimes(byMap, (2 * rows * columns) / whole, other.map);
      addTimes(byAxes[0], (2 * columns * maps) / whole, other.axes[0]);
      addTimes(byAxes[1], (2 * rows * maps) / whole, other.axes[1]);
    });
    gradients.maps.set(byMap, h * byMap.length);
    head.axes.forEach((axis, a) => {
      const [byCentre, bySpread] = axisGradients(axis, byAxes[a], student.centre[2 * h + a], student.spread[h]);
      gradients.centre[2 * h + a] = byCentre;
      gradients.spread[h] += bySpread;
    });
  });
  return { error: Math.sqrt(Math.max(0, square / whole)), gradients };
}

/** Adam, as a function of gradients and step that changes parameters in place; its rate falls to zero along a half cosine.
    @type {(parameters: Student) => (gradients: Student, step: number) => void} */
function adam(parameters) {
  const { rate, steps } = LEARNING;
  const moments = Object.entries(parameters).map(([name, x]) => [name, x.map(() => 0), x.map(() => 0)]);
  return (gradients, step) => {
    const now = 0.5 * rate * (1 + Math.cos((Math.PI * step) / steps));
    for (const [name, first, second] of moments) gradients[name].forEach((gradient, n) => {
      first[n] += 0.1 * (gradient - first[n]);
      second[n] += 0.001 * (gradient ** 2 - second[n]);
      const [mean, square] = [first[n] / (1 - 0.9 ** (step + 1)), second[n] / (1 - 0.999 ** (step + 1))];
      parameters[name][n] -= (now * mean) / (Math.sqrt(square) + 1e-8);
    });
  };
}
