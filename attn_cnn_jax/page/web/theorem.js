"use strict";
// Theorem 1 live: nine heads with centres on the 3 x 3 grid of shifts, sharper and sharper, become any 3 x 3 convolution.

const GIVEN_KERNELS = {
  blur: [1, 2, 1, 2, 4, 2, 1, 2, 1].map((n) => n / 16),
  edge: [-1, 0, 1, -2, 0, 2, -1, 0, 1].map((n) => n / 4),
  sharpen: [0, -1, 0, -1, 5, -1, 0, -1, 0],
};
const HARD = 1e4; // a sharpness at which a head reads one pixel, and no number of it differs

/** What is shown: entries of the kernel, how far the heads are on their way to the grid (0 to 1), log2 of the sharpness, and
    the output pixel whose sum is written out.
    @type {{ kernel: number[], snap: number, sharpness: number, pixel: Pixel }} */
const theorem = { kernel: GIVEN_KERNELS.blur, snap: 0, sharpness: -2, pixel: [0, 0] };

/** The mean that one head takes at every pixel of an image of numbers, (rows, columns), with zeros around.
    @type {(x: Float64Array, size: Grid, shift: Pixel, sharpness: number) => Float64Array} */
function headMeans(x, [height, width], [row, column], sharpness) {
  const mixed = (image, size, centre) => { // the rows of the result are the columns of the image
    const weights = axisAttention(size, [-1, size + 1], centre, sharpness); // zeros around the image: no products
    const other = image.length / size;
    return Float64Array.from(image, (_, n) => {
      const from = (n % other) * size, at = Math.floor(n / other) * (size + 2) + 1;
      return product(weights.subarray(at, at + size), image.subarray(from, from + size));
    });
  };
  return mixed(mixed(x, width, column), height, row);
}

/** Images weighted by the entries of a kernel, and summed. */
const weightedSum = (images, kernel) => images[0].map((_, n) => images.reduce((sum, image, h) => sum + kernel[h] * image[n], 0));

/** Both sides of the theorem for an image of numbers: what nine heads and nine entries read, and their sums. */
function theoremOf(x, { kernel, snap, sharpness }) {
  const own = data.layers[0].position?.centre; // where the heads of the first layer look, else a circle
  const start = own?.length === 9 ? own : SHIFTS.map((_, h) => [2.5 * Math.cos(h * 0.7), 2.5 * Math.sin(h * 0.7)]);
  const centres = SHIFTS.map((shift, h) => shift.map((n, axis) => (1 - snap) * start[h][axis] + snap * n));
  const heads = centres.map((centre) => headMeans(x, data.size, centre, 2 ** sharpness));
  const entries = SHIFTS.map((shift) => headMeans(x, data.size, shift, HARD));
  const [attention, convolution] = [weightedSum(heads, kernel), weightedSum(entries, kernel)];
  return { heads, entries, attention, convolution, difference: attention.map((y, n) => Math.abs(y - convolution[n])) };
}

/** An element in the colour of a head and its entry of the kernel. */
function coloured(element, h) {
  element.classList.add("of-head");
  element.style.setProperty("--hue", 40 * h);
  return element;
}

/** The sum at the query pixel, with sharp heads, whose `means` are given, and with the kernel: as many terms in the same colours. */
function showFirstSum(x, means) {
  const [height, width] = data.size, size = height / grid[0], { kernel } = theorem;
  const [i, j] = currentQuery().map((n) => n * size + (size >> 1));
  const pixelAt = (row, column) => (row < 0 || column < 0 || row >= height || column >= width ? 0 : x[row * width + column]);
  const sides = { heads: means.map((mean) => mean[i * width + j]), kernel: SHIFTS.map(([row, column]) => pixelAt(i + row, j + column)) };
  for (const [side, readings] of Object.entries(sides)) {
    $(`sum-of-${side}`).replaceChildren(...readings.map((reading, h) =>
      coloured(make("span", { textContent: `${fixed(reading)}\u2009×\u2009${fixed(kernel[h])}` }), h)));
    $(`total-of-${side}`).textContent = readings.reduce((sum, reading, h) => sum + reading * kernel[h], 0).toFixed(4);
  }
}

/** Brightness of the chosen image, 0 to 1.
    @type {() => Float64Array} */
function brightness() {
  const bytes = bytesOf(data.pictures[view.picture].image), { channels } = data;
  return Float64Array.from({ length: bytes.length / channels }, (_, n) =>
    bytes.subarray(n * channels, (n + 1) * channels).reduce((sum, byte) => sum + byte, 0) / (255 * channels));
}

/** Draws numbers as grey: 0 to 1, or -1 to 1 where a kernel has negative sums. */
function drawGrey(canvas, image, isSigned, size = data.size) {
  drawBytes(canvas, Uint8ClampedArray.from(image, (value) => 255 * (isSigned ? (value + 1) / 2 : value)), { size, channels: 1 });
}

function showTheorem() {
  $("theorem").hidden = $("first-sum").hidden = data.pictures.length === 0;
  if ($("theorem").hidden) return;
  const x = brightness(), found = theoremOf(x, theorem);
  showFirstSum(x, found.entries);
  const isSigned = theorem.kernel.reduce((sum, entry) => sum + entry, 0) < 0.5;
  drawGrey($("theorem-image"), x, false);
  drawGrey($("theorem-attention"), found.attention, isSigned);
  drawGrey($("theorem-convolution"), found.convolution, isSigned);
  drawMap($("theorem-difference"), found.difference, data.size, [0, 0.5], colourTable(theme()));
  $("theorem-error").textContent = shortNumber(Math.max(...found.difference));
  $("sharpness-text").textContent = (2 ** theorem.sharpness).toFixed(2);
  $("snap").value = theorem.snap;
  $("sharpness").value = theorem.sharpness;
  showNumbers($("entries").children, theorem.kernel, 4);
  const [row, column] = theorem.pixel, at = row * data.size[1] + column;
  frameAt($("theorem"), theorem.pixel, data.size);
  frameAt($("theorem-image").parentNode, theorem.pixel, data.size);
  const cells = (images) => theorem.kernel.map((entry, h) => coloured(make("td", { textContent: `${fixed(images[h][at])} × ${fixed(entry)}` }), h));
  const line = (name, images, sum) => make("tr", {}, make("th", { scope: "row", textContent: name }), ...cells(images),
    make("td", { textContent: `= ${sum[at].toFixed(4)}` }));
  $("sum").replaceChildren(
    line("heads: mean × value", found.heads, found.attention), line("kernel: pixel × entry", found.entries, found.convolution));
  $("sum-title").textContent = `The sum behind pixel (${row}, ${column}), one column per head and entry`;
}

const sharpening = animation(60, () => { // moves the heads to the grid, then makes them sharper
  if (theorem.snap < 1) theorem.snap = Math.min(1, theorem.snap + 0.04);
  else theorem.sharpness = Math.min(5, theorem.sharpness + 0.1);
  if (theorem.sharpness === 5) sharpening.stop();
  showTheorem();
});

/** A button for each of some kernels, by name. */
function kernelButtons(kernels, choose) {
  return Object.entries(kernels).map(([textContent, kernel]) => {
    const button = make("button", { type: "button", className: "button", textContent });
    button.addEventListener("click", () => choose(kernel));
    return button;
  });
}

const clampEntry = (value) => Math.max(-100, Math.min(100, value));

/** A field for an entry of a kernel. */
function entryField(ariaLabel, put) {
  const input = make("input", { type: "number", step: 0.05, ariaLabel });
  input.addEventListener("input", () => {
    const value = clampEntry(input.valueAsNumber);
    if (!Number.isFinite(value)) return;
    put(value);
    showLimited(input, value);
  });
  return input;
}

function listenToTheorem() {
  $("kernels").append(...kernelButtons(GIVEN_KERNELS, (kernel) => setTheorem({ kernel })));
  $("entries").append(...SHIFTS.map((shift, n) => coloured(entryField(`kernel entry at shift ${shift.join(", ")}`, (value) =>
    setTheorem({ kernel: theorem.kernel.map((entry, h) => (h === n ? value : entry)) })), n)));
  for (const name of ["snap", "sharpness"]) {
    $(name).addEventListener("input", () => {
      sharpening.stop();
      setTheorem({ [name]: Number($(name).value) });
    });
  }
  $("run").addEventListener("click", () => {
    setTheorem(wantsNoMotion() ? { snap: 1, sharpness: 5 } : { snap: 0, sharpness: -2 });
    if (!wantsNoMotion()) sharpening.start();
  });
  for (const figure of document.querySelectorAll("#theorem .framed")) {
    figure.addEventListener("pointermove", (event) => setTheorem({ pixel: pixelAt(event, figure, data.size) }));
  }
  $("sum").addEventListener("pointerover", (event) => {
    const shift = SHIFTS[(event.target.closest("td")?.cellIndex ?? 0) - 1];
    frameAt($("theorem-image").parentNode, theorem.pixel.map((n, axis) => n + (shift?.[axis] ?? 0)), data.size);
  });
}

function setTheorem(changes) {
  Object.assign(theorem, changes);
  showTheorem();
}
