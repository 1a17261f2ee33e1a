"use strict";
// Colours and canvases.

// From none to most, light to dark on a light page and dark to light on a dark one: brightness alone tells the
// order, so that readers who see few or no colours read it too.
const RAMPS = {
  light: [[240, 242, 246], [251, 208, 140], [236, 118, 88], [150, 40, 110], [38, 12, 66]],
  dark: [[27, 30, 38], [80, 36, 120], [190, 56, 108], [250, 148, 66], [255, 247, 196]],
};

/** 256 colours of a theme's ramp. */
function colourTable(theme) {
  const stops = RAMPS[theme];
  return Array.from({ length: 256 }, (_, n) => {
    const place = (n / 255) * (stops.length - 1);
    const stop = Math.min(Math.floor(place), stops.length - 2);
    return stops[stop].map((from, c) => Math.round(from + (stops[stop + 1][c] - from) * (place - stop)));
  });
}

/** Draws a map on a canvas of one pixel a value; `range` [low, high] gets the ends of the ramp.
    @type {(canvas: HTMLCanvasElement, map: ArrayLike<number>, size: Grid, range: [number, number], colours: number[][]) => void} */
function drawMap(canvas, map, size, range, colours) {
  const bytes = Uint8ClampedArray.from({ length: 3 * map.length }, (_, n) => colours[level(map[Math.floor(n / 3)], range)][n % 3]);
  drawBytes(canvas, bytes, { size, channels: 3 });
}

/** Draws an image of grey or RGB bytes, one pixel a pixel. */
function drawBytes(canvas, bytes, { size: [height, width], channels }) {
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const rgba = new Uint8ClampedArray(4 * height * width).fill(255);
  for (let n = 0; n < height * width; n++) {
    for (let c = 0; c < 3; c++) rgba[4 * n + c] = bytes[n * channels + (channels === 1 ? 0 : c)];
  }
  canvas.getContext("2d").putImageData(new ImageData(rgba, width), 0, 0);
}

/** 0 .. 255, the place of a value in a range. In a range of a single value that one has the top.
    @type {(value: number, range: [low: number, high: number]) => number} */
function level(value, [low, high]) {
  if (high - low < 1e-12) return value < low - 1e-12 ? 0 : 255;
  return Math.max(0, Math.min(255, Math.round((255 * (value - low)) / (high - low))));
}

/** Draws the picture large, with an overlay (see overlayOf) over it, and marks the query.
    @type {(canvas: HTMLCanvasElement, picture: any, grid: Grid, query: Pixel, overlay: Overlay, colours: number[][], theme: string) => void} */
function drawStage(canvas, picture, grid, query, { map, range, centre, handle, centres = [] }, colours, theme) {
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  /** @type {[number, number]} */
  const cell = [height / grid[0], width / grid[1]];
  /** @type {(shift: Pixel) => [x: number, y: number]} */
  const placeOf = ([row, column]) => [(query[1] + column + 0.5) * cell[1], (query[0] + row + 0.5) * cell[0]];
  context.imageSmoothingEnabled = false;
  context.clearRect(0, 0, width, height);
  if (picture) {
    context.fillStyle = "#000"; // below strokes
    context.fillRect(0, 0, width, height);
    context.filter = map ? "grayscale(1)" : "none";
    context.drawImage(picture, 0, 0, width, height);
    context.filter = "none";
  }
  if (map) {
    context.fillStyle = theme === "dark" ? "rgb(20 22 28 / 55%)" : "rgb(255 255 255 / 60%)";
    context.fillRect(0, 0, width, height);
    map.forEach((value, n) => {
      const at = level(value, range), [row, column] = [Math.floor(n / grid[1]), n % grid[1]];
      context.fillStyle = `rgb(${colours[at].join(" ")} / ${Math.min(1, (at / 255) ** 0.6)})`;
      const x = Math.round(column * cell[1]), y = Math.round(row * cell[0]);
      context.fillRect(x, y, Math.round((column + 1) * cell[1]) - x, Math.round((row + 1) * cell[0]) - y);
    });
  }
  if (centre) outlined(context, "#fff", 1.75, (unit) => {
    const [x, y] = placeOf(centre);
    context.moveTo(...placeOf([0, 0]));
    context.lineTo(x, y);
    context.moveTo(x + 5 * unit, y);
    context.arc(x, y, 5 * unit, 0, 2 * Math.PI);
  });
  outlined(context, "#fff", 2.5, () => context.rect(query[1] * cell[1], query[0] * cell[0], cell[1], cell[0]));
  for (const { centre, name, radius } of centres) drawRing(context, placeOf(centre), cell.map((side) => Math.min(radius, 99) * side), name);
  if (handle) outlined(context, "#fff", 4, (unit) => context.arc(...handlePlace(canvas, grid, query, handle), 5 * unit, 0, 2 * Math.PI));
}

/** Strokes a path, light on dark, so that it shows on any picture; `path` gets the length of a pixel on a stage of 320. */
function outlined(context, colour, width, path) {
  const unit = context.canvas.width / 320;
  for (const [strokeStyle, line] of [["#000", width + 2], [colour, width]]) {
    Object.assign(context, { strokeStyle, lineWidth: line * unit });
    context.beginPath();
    path(unit);
    context.stroke();
  }
}

/** A ring with a head's number in it.
    @type {(context: CanvasRenderingContext2D, place: number[], radii: [number, number], name: string) => void} */
function drawRing(context, [x, y], [high, wide], name) {
  outlined(context, "#ffb454", 1.5, () => context.ellipse(x, y, wide, high, 0, 0, 2 * Math.PI));
  const unit = context.canvas.width / 320;
  Object.assign(context, { font: `600 ${13 * unit}px system-ui, sans-serif`, textAlign: "center", textBaseline: "middle" });
  Object.assign(context, { strokeStyle: "#000", fillStyle: "#fff", lineWidth: 3 * unit });
  context.strokeText(name, x, y);
  context.fillText(name, x, y);
}

/** Where a head's centre is on the canvas: at its edge where it lies beyond.
    @type {(canvas: HTMLCanvasElement, grid: Grid, query: Pixel, centre: Pixel) => [x: number, y: number]} */
function handlePlace({ width, height }, grid, query, centre) {
  const inside = (n, size) => Math.max(10, Math.min(size - 10, n));
  const x = ((query[1] + centre[1] + 0.5) / grid[1]) * width, y = ((query[0] + centre[0] + 0.5) / grid[0]) * height;
  return [inside(x, width), inside(y, height)];
}
