"use strict";
// Theorem 1 live: nine heads with centres on the 3 x 3 grid of shifts, sharper and sharper, become any 3 x 3 convolution.

const SHIFTS = Array.from({ length: 9 }, (_, n) => [Math.floor(n / 3) - 1, (n % 3) - 1]);
const GIVEN_KERNELS = {
  blur: [1, 2, 1, 2, 4, 2, 1, 2, 1].map((n) => n / 16),
  edge: [-1, 0, 1, -2, 0, 2, -1, 0, 1].map((n) => n / 4),
  sharpen: [0, -1, 0, -1, 5, -1, 0, -1, 0],
};
const MOST_ENTRY = 100;

/** What is shown: entries of the kernel, how far the heads are on their way to the grid (0 to 1), log2 of the sharpness, and
    the output pixel whose sum is written out. */
const theorem = { kernel: GIVEN_KERNELS.blur, snap: 0, sharpness: -2, pixel: [data.size[0] >> 1, data.size[1] >> 1] };

/** Softmax weights of a head along one axis, queries by keys of an image with one pixel of zeros around: the score of a key is
    -sharpness (shift - centre)^2 (eq. 9). */
function axisWeights(size, centre, sharpness) {
  return Array.from({ length: size }, (_, i) =>
    softmax(Float64Array.from({ length: size + 2 }, (_, k) => -sharpness * (k - 1 - i - centre) ** 2)));
}

/** The mean that one head takes at every pixel of an image of numbers, (rows, columns). */
function headMeans(x, [height, width], [row, column], sharpness) {
  const rows = axisWeights(height, row, sharpness), columns = axisWeights(width, column, sharpness);
  const narrow = Array.from({ length: height }, (_, k) => columns.map((weights) => {
    let sum = 0;
    for (let l = 0; l < width; l++) sum += weights[l + 1] * x[k * width + l];
    return sum;
  }));
  return Float64Array.from({ length: height * width }, (_, n) => {
    const weights = rows[Math.floor(n / width)];
    let sum = 0;
    for (let k = 0; k < height; k++) sum += weights[k + 1] * narrow[k][n % width];
    return sum;
  });
}

/** The pixel that one entry of the kernel reads at every pixel of an image: zero beyond the border. */
function shiftedPixels(x, [height, width], [row, column]) {
  return Float64Array.from({ length: height * width }, (_, n) => {
    const [i, j] = [Math.floor(n / width) + row, (n % width) + column];
    return i < 0 || j < 0 || i >= height || j >= width ? 0 : x[i * width + j];
  });
}

/** Images weighted by the entries of a kernel, and summed. */
const weightedSum = (images, kernel) => images[0].map((_, n) => images.reduce((sum, image, h) => sum + kernel[h] * image[n], 0));

/** Where the heads begin: where those of the first layer look, if it has nine with centres; else on a circle. */
function startCentres() {
  const centre = data.layers[0].position?.centre;
  return centre?.length === 9 ? centre
    : SHIFTS.map((_, h) => [2.5 * Math.cos(h * 0.7), 2.5 * Math.sin(h * 0.7)]);
}

/** Both sides of the theorem for an image of numbers: what nine heads and nine entries read, and their sums. */
function theoremOf(x, { kernel, snap, sharpness }) {
  const start = startCentres();
  const centres = SHIFTS.map((shift, h) => shift.map((n, axis) => (1 - snap) * start[h][axis] + snap * n));
  const heads = centres.map((centre) => headMeans(x, data.size, centre, 2 ** sharpness));
  const entries = SHIFTS.map((shift) => shiftedPixels(x, data.size, shift));
  const [attention, convolution] = [weightedSum(heads, kernel), weightedSum(entries, kernel)];
  return { centres, heads, entries, attention, convolution, difference: attention.map((y, n) => Math.abs(y - convolution[n])) };
}

/** Brightness of the chosen image, 0 to 1. */
function brightness() {
  const bytes = bytesOf(data.pictures[view.picture].image), { channels } = data;
  return Float64Array.from({ length: bytes.length / channels }, (_, n) =>
    bytes.subarray(n * channels, (n + 1) * channels).reduce((sum, byte) => sum + byte, 0) / (255 * channels));
}

/** Draws numbers as grey: 0 to 1, or -1 to 1 where a kernel has negative sums. */
function drawGrey(canvas, image, isSigned) {
  drawBytes(canvas, Uint8ClampedArray.from(image, (value) => 255 * (isSigned ? (value + 1) / 2 : value)), { ...data, channels: 1 });
}

function showTheorem() {
  $("theorem").hidden = data.pictures.length === 0;
  if ($("theorem").hidden) return;
  const x = brightness(), found = theoremOf(x, theorem);
  const isSigned = theorem.kernel.reduce((sum, entry) => sum + entry, 0) < 0.5;
  drawGrey($("theorem-image"), x, false);
  drawGrey($("theorem-attention"), found.attention, isSigned);
  drawGrey($("theorem-convolution"), found.convolution, isSigned);
  drawMap($("theorem-difference"), found.difference, data.size, [0, 0.5], colourTable(theme()));
  $("theorem-error").textContent = shortNumber(Math.max(...found.difference));
  $("sharpness-text").textContent = (2 ** theorem.sharpness).toFixed(2);
  $("snap").value = theorem.snap;
  $("sharpness").value = theorem.sharpness;
  [...$("entries").children].forEach((input, n) => {
    if (document.activeElement !== input) input.value = Number(theorem.kernel[n].toFixed(4));
  });
  const [row, column] = theorem.pixel, at = row * data.size[1] + column;
  frameAt("#theorem .output", theorem.pixel);
  frameAt("#theorem .input", theorem.pixel);
  const cells = (images) => theorem.kernel.map((entry, h) => make("td", { textContent: `${fixed(images[h][at])} × ${fixed(entry)}` }));
  const line = (name, images, sum) => make("tr", {}, make("th", { scope: "row", textContent: name }), ...cells(images),
    make("td", { textContent: `= ${sum[at].toFixed(4)}` }));
  $("sum").replaceChildren(
    line("heads: mean × value", found.heads, found.attention), line("kernel: pixel × entry", found.entries, found.convolution));
  $("sum-title").textContent = `The sum behind pixel (${row}, ${column}), one column per head and entry`;
}

/** Frames a pixel in the images of a selector. */
function frameAt(selector, [row, column]) {
  const [height, width] = data.size;
  const place = { left: column / width, top: row / height, wide: 1 / width, high: 1 / height };
  for (const element of document.querySelectorAll(selector)) {
    for (const name in place) element.style.setProperty(`--${name}`, `${100 * place[name]}%`);
  }
}

let running = null; // the timer of the course from soft to hard

/** Moves the heads to the grid, then makes them sharper. */
function runTheorem() {
  clearInterval(running);
  const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
  Object.assign(theorem, isStill ? { snap: 1, sharpness: 5 } : { snap: 0, sharpness: -2 });
  showTheorem();
  if (isStill) return;
  running = setInterval(() => {
    if (theorem.snap < 1) theorem.snap = Math.min(1, theorem.snap + 0.04);
    else theorem.sharpness = Math.min(5, theorem.sharpness + 0.1);
    if (theorem.sharpness === 5) clearInterval(running);
    showTheorem();
  }, 60);
}

function listenToTheorem() {
  for (const name of Object.keys(GIVEN_KERNELS)) {
    const button = make("button", { type: "button", className: "button", textContent: name });
    button.addEventListener("click", () => setTheorem({ kernel: GIVEN_KERNELS[name] }));
    $("kernels").append(button);
  }
  SHIFTS.forEach((shift, n) => {
    const input = make("input", { type: "number", step: 0.05 });
    input.setAttribute("aria-label", `kernel entry at shift ${shift.join(", ")}`);
    input.addEventListener("input", () => {
      const value = Math.max(-MOST_ENTRY, Math.min(MOST_ENTRY, input.valueAsNumber));
      if (Number.isFinite(value)) setTheorem({ kernel: theorem.kernel.map((entry, h) => (h === n ? value : entry)) });
    });
    $("entries").append(input);
  });
  for (const name of ["snap", "sharpness"]) {
    $(name).addEventListener("input", () => {
      clearInterval(running);
      setTheorem({ [name]: Number($(name).value) });
    });
  }
  $("run").addEventListener("click", runTheorem);
  for (const figure of document.querySelectorAll("#theorem .framed")) {
    figure.addEventListener("pointermove", (event) => {
      const box = figure.getBoundingClientRect();
      const place = [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width];
      setTheorem({ pixel: place.map((share, axis) => clamp(Math.floor(share * data.size[axis]), data.size[axis])) });
    });
  }
  $("sum").addEventListener("pointerover", (event) => {
    const shift = SHIFTS[(event.target.closest("td")?.cellIndex ?? 0) - 1];
    frameAt("#theorem .input", theorem.pixel.map((n, axis) => n + (shift?.[axis] ?? 0)));
  });
}

function setTheorem(changes) {
  Object.assign(theorem, changes);
  showTheorem();
}
