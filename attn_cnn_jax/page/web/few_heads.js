"use strict";
// Few heads live: a filter of one channel is one head or two, and three channels to three need as many as their filters span
// (theorem/rank.py).

const outerProduct = (a, b) => a.flatMap((x) => b.map((y) => x * y));
const FILTERS = {
  blur: outerProduct([1, 2, 1], [1, 2, 1]).map((n) => n / 16),
  "large blur": outerProduct([1, 4, 6, 4, 1], [1, 4, 6, 4, 1]).map((n) => n / 256),
  Sobel: outerProduct([1, 2, 1], [-1, 0, 1]).map((n) => n / 4),
  "large edge": outerProduct([1, 4, 6, 4, 1], [-1, -2, 0, 2, 1]).map((n) => n / 48),
  Laplace: [0, 1, 0, 1, -4, 1, 0, 1, 0].map((n) => n / 4),
  sharpen: [0, -1, 0, -1, 5, -1, 0, -1, 0],
};

/** What is shown: entries of a square filter, row by row, the entry that arrow keys choose, and how many independent filters
    lead from three channels to three.
    @type {{ filter: number[], at: Pixel, different: number }} */
const few = { filter: FILTERS.Sobel, at: [1, 1], different: 3 };

/** One head for what a filter adds and one for what it takes away: patterns of attention that sum to one, and value maps.
    @type {(filter: number[]) => { pattern: number[], value: number }[]} */
function headsOfFilter(filter) {
  const parts = [1, -1].map((sign) => ({ sign, part: filter.map((entry) => Math.max(0, sign * entry)) }));
  return parts.flatMap(({ sign, part }) => {
    const total = part.reduce((sum, entry) => sum + entry, 0);
    return total > 0 ? [{ pattern: part.map((entry) => entry / total), value: sign * total }] : [];
  });
}

/** The mean that a pattern of attention takes at every pixel of an image of numbers, with zeros around.
    @type {(x: Float64Array, size: Grid, pattern: number[]) => Float64Array} */
function patternMeans(x, [height, width], pattern) {
  const size = Math.sqrt(pattern.length), reach = (size - 1) / 2;
  return Float64Array.from(x, (_, n) => {
    const [i, j] = [Math.floor(n / width) - reach, (n % width) - reach];
    return pattern.reduce((sum, share, entry) => {
      const [k, l] = [i + Math.floor(entry / size), j + (entry % size)];
      return k < 0 || l < 0 || k >= height || l >= width ? sum : sum + share * x[k * width + l];
    }, 0);
  });
}

function showFew() {
  $("few").hidden = data.pictures.length === 0;
  if ($("few").hidden) return;
  const x = brightness(), { filter } = few, size = Math.sqrt(filter.length), heads = headsOfFilter(filter);
  const means = heads.map(({ pattern }) => patternMeans(x, data.size, pattern));
  const attention = Float64Array.from(x, (_, n) => heads.reduce((sum, { value }, h) => sum + value * means[h][n], 0));
  const convolution = patternMeans(x, data.size, filter);
  const difference = Math.max(...attention.map((y, n) => Math.abs(y - convolution[n])));
  const total = filter.reduce((sum, entry) => sum + entry, 0), most = Math.max(1, Math.abs(total)); // of a grey image
  const isSigned = heads.some(({ value }) => value < 0) && total < 0.5;
  const count = heads.length === 1 ? "One head is" : "Two heads are";
  $("few-count").textContent = heads.length ? `${count} enough for this one, and no layer does with fewer.` : "Draw a filter.";
  $("few-error").textContent = shortNumber(difference);
  showBrush(size);
  drawGrey($("few-image"), x, false);
  drawGrey($("few-attention"), attention.map((y) => y / most), isSigned);
  drawGrey($("few-convolution"), convolution.map((y) => y / most), isSigned);
  $("few-patterns").replaceChildren(...heads.map(({ pattern, value }, h) => {
    const canvas = make("canvas");
    drawMap(canvas, Float64Array.from(pattern), [size, size], [0, Math.max(...pattern)], colourTable(theme()));
    return make("figure", {}, canvas, make("figcaption", { textContent: `head ${h + 1}, times ${value.toFixed(2)}` }));
  }));
  if ($("few-entries").children.length !== filter.length) makeFewEntries(size);
  showNumbers($("few-entries").children, filter, 4);
  const rank = few.different; // of the kernel, a row per shift and a column per filter
  $("few-different").value = rank;
  $("few-rank").textContent = `rank ${rank}: `
    + (rank === 9 ? "nine heads, as the theorem says." : `at least ${rank} heads, and ${rank + 1} are enough.`);
}

/** The filter as grey, what it adds light and what it takes away dark, and the entry that keys change. */
function showBrush(size) {
  const { filter } = few, most = Math.max(1e-9, ...filter.map(Math.abs)), at = few.at = /** @type {Pixel} */ (few.at.map((n) => clamp(n, size)));
  drawGrey($("few-drawing"), filter.map((entry) => entry / most), true, [size, size]);
  frameAt($("few-canvas"), at, [size, size]);
  $("few-canvas").ariaLabel = `Filter, row ${at[0] + 1}, column ${at[1] + 1}: ${fixed(filter[at[0] * size + at[1]])}`;
}

/** Sets an entry of the filter, and chooses it. */
function paint(at, value) {
  const size = Math.sqrt(few.filter.length), chosen = at[0] * size + at[1];
  setFew({ at, filter: few.filter.map((entry, n) => (n === chosen ? clampEntry(value(entry)) : entry)) });
}

function listenToBrush() {
  const canvas = $("few-canvas"), size = () => Math.sqrt(few.filter.length);
  const drawn = () => Number(chosen("brush"));
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    paint(pixelAt(event, canvas, [size(), size()]), drawn);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (canvas.hasPointerCapture(event.pointerId)) paint(pixelAt(event, canvas, [size(), size()]), drawn);
  });
  canvas.addEventListener("keydown", (event) => {
    const arrow = ARROWS[event.key], step = { "+": 0.25, "-": -0.25 }[event.key];
    if (event.ctrlKey || event.altKey || event.metaKey || !(arrow || step || event.key === " ")) return;
    event.preventDefault();
    if (arrow) setFew({ at: few.at.map((n, axis) => clamp(n + arrow[axis], size())) });
    else paint(few.at, step ? (entry) => entry + step : drawn);
  });
  for (const n of [3, 5]) $(`few-empty-${n}`).addEventListener("click", () => setFew({ filter: Array(n * n).fill(0) }));
}

/** Fields for the entries of a filter of some rows and columns. */
function makeFewEntries(size) {
  $("few-entries").style.gridTemplateColumns = `repeat(${size}, minmax(0, 5em))`;
  $("few-entries").replaceChildren(...Array.from({ length: size ** 2 }, (_, n) =>
    entryField(`filter entry ${n + 1}`, (value) => paint([Math.floor(n / size), n % size], () => value))));
}

function listenToFew() {
  $("few-filters").append(...kernelButtons(FILTERS, (filter) => setFew({ filter })));
  listenToBrush();
  $("few-different").addEventListener("input", () => setFew({ different: Number($("few-different").value) }));
}

function setFew(changes) {
  Object.assign(few, changes);
  showFew();
}
