"use strict";
// Brings a picture to the network's size as data/pictures.py does: on white, grey by Pillow's weights, the middle part
// resized by Pillow's Lanczos filter. The same file gets the same answer here and from `attn-cnn predict`.

const LOBES = 3; // of the filter
const MOST_SOURCE_PIXELS = 2 ** 24; // that every browser lets a canvas have: of larger pictures the browser takes fewer

/** The largest middle part of an image that has the shape of `size`, resized to it: ImageData. */
function fitted(image, [height, width], channels) {
  const source = pixelsOnWhite(image);
  if (channels === 1) toGrey(source.data);
  const step = Math.min(source.height / height, source.width / width);
  const narrow = resizedColumns(source.data, source.height, lanczosWeights(source.width, width, step));
  return new ImageData(resizedColumns(narrow, width, lanczosWeights(source.height, height, step)), width, height);
}

function pixelsOnWhite(image) {
  const scale = Math.min(1, Math.sqrt(MOST_SOURCE_PIXELS / (image.width * image.height)));
  const [width, height] = [image.width, image.height].map((n) => Math.max(1, Math.floor(n * scale)));
  const context = make("canvas", { width, height }).getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  context.drawImage(image, 0, 0, width, height);
  return context.getImageData(0, 0, width, height);
}

/** Luma of ITU-R 601, in the integers of Pillow's mode "L". */
function toGrey(rgba) {
  for (let n = 0; n < rgba.length; n += 4) {
    rgba[n] = rgba[n + 1] = rgba[n + 2] = (19595 * rgba[n] + 38470 * rgba[n + 1] + 7471 * rgba[n + 2] + 32768) >> 16;
  }
}

/** Weights {first, factors} of the source pixels of each of `size` pixels, from the middle of `total` source pixels, `step`
    of them a pixel. */
function lanczosWeights(total, size, step) {
  const sinc = (x) => (x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x));
  const stretch = Math.max(1, step); // over all pixels that are lost
  return Array.from({ length: size }, (_, n) => {
    const centre = (total - size * step) / 2 + (n + 0.5) * step;
    const first = Math.max(0, Math.floor(centre - LOBES * stretch + 0.5));
    const end = Math.min(total, Math.floor(centre + LOBES * stretch + 0.5));
    const factors = Float64Array.from({ length: end - first }, (_, i) => {
      const x = (first + i + 0.5 - centre) / stretch;
      return Math.abs(x) < LOBES ? sinc(x) * sinc(x / LOBES) : 0;
    });
    const sum = factors.reduce((a, b) => a + b);
    return { first, factors: factors.map((factor) => factor / sum) };
  });
}

/** RGBA bytes `(rows, columns, 4)` as `(weights, rows, 4)`: twice makes both axes new, in their order. */
function resizedColumns(rgba, rows, weights) {
  const columns = rgba.length / (4 * rows);
  const result = new Uint8ClampedArray(weights.length * rows * 4);
  weights.forEach(({ first, factors }, n) => {
    for (let row = 0; row < rows; row++) for (let c = 0; c < 4; c++) {
      let sum = 0;
      for (let i = 0; i < factors.length; i++) sum += factors[i] * rgba[4 * (row * columns + first + i) + c];
      result[4 * (n * rows + row) + c] = sum;
    }
  });
  return result;
}
