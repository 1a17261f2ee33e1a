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

/** Draws a map on a canvas of one pixel a value; `range` [low, high] gets the ends of the ramp. */
function drawMap(canvas, map, grid, range, colours) {
  if (canvas.width !== grid[1] || canvas.height !== grid[0]) Object.assign(canvas, { width: grid[1], height: grid[0] });
  const context = canvas.getContext("2d");
  const image = context.createImageData(grid[1], grid[0]);
  for (let n = 0; n < map.length; n++) {
    const [red, green, blue] = colours[level(map[n], range)];
    image.data.set([red, green, blue, 255], 4 * n);
  }
  context.putImageData(image, 0, 0);
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

/** 0 .. 255, the place of a value in a range. In a range of a single value that one has the top. */
function level(value, [low, high]) {
  if (high - low < 1e-12) return value < low - 1e-12 ? 0 : 255;
  return Math.max(0, Math.min(255, Math.round((255 * (value - low)) / (high - low))));
}

/** Draws the picture large, with a map over it if one is given, and marks the query and the map's centre. */
function drawStage(canvas, picture, grid, query, overlay, colours, theme) {
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  const cell = [height / grid[0], width / grid[1]];
  context.imageSmoothingEnabled = false;
  context.clearRect(0, 0, width, height);
  if (picture) {
    context.fillStyle = "#000"; // below strokes
    context.fillRect(0, 0, width, height);
    context.filter = overlay?.map ? "grayscale(1)" : "none";
    context.drawImage(picture, 0, 0, width, height);
    context.filter = "none";
  }
  if (overlay?.map) {
    context.fillStyle = theme === "dark" ? "rgb(20 22 28 / 55%)" : "rgb(255 255 255 / 60%)";
    context.fillRect(0, 0, width, height);
    for (let k = 0, n = 0; k < grid[0]; k++) {
      for (let l = 0; l < grid[1]; l++, n++) {
        const at = level(overlay.map[n], overlay.range), [red, green, blue] = colours[at];
        context.fillStyle = `rgb(${red} ${green} ${blue} / ${Math.min(1, (at / 255) ** 0.6)})`;
        const x = Math.round(l * cell[1]), y = Math.round(k * cell[0]);
        context.fillRect(x, y, Math.round((l + 1) * cell[1]) - x, Math.round((k + 1) * cell[0]) - y);
      }
    }
    if (overlay.centre) drawCentre(context, cell, query, overlay.centre);
  }
  drawQuery(context, cell, query);
  overlay?.centres?.forEach((centre) => drawRing(context, cell, query, centre));
  if (overlay?.handle) drawHandle(context, handlePlace(canvas, grid, view.query, overlay.handle));
}

/** Where a head's centre is on the canvas: at its edge where it lies beyond. */
function handlePlace({ width, height }, grid, query, centre) {
  const inside = (n, size) => Math.max(10, Math.min(size - 10, n));
  const x = ((query[1] + centre[1] + 0.5) / grid[1]) * width, y = ((query[0] + centre[0] + 0.5) / grid[0]) * height;
  return [inside(x, width), inside(y, height)];
}

/** What can be dragged to move a head. */
function drawHandle(context, [x, y]) {
  const unit = context.canvas.width / 320;
  context.beginPath();
  context.arc(x, y, 7 * unit, 0, 2 * Math.PI);
  context.fillStyle = "#fff";
  context.fill();
  context.lineWidth = 2.5 * unit;
  context.strokeStyle = "#000";
  context.stroke();
}

/** A head's centre with its number, and a ring of one standard deviation. */
function drawRing(context, cell, query, { centre, name, radius }) {
  const unit = context.canvas.width / 320;
  const x = (query[1] + centre[1] + 0.5) * cell[1], y = (query[0] + centre[0] + 0.5) * cell[0];
  for (const [colour, line] of [["#000", 3], ["#ffb454", 1.5]]) {
    context.strokeStyle = colour;
    context.lineWidth = line * unit;
    context.beginPath();
    context.ellipse(x, y, Math.min(radius, 99) * cell[1], Math.min(radius, 99) * cell[0], 0, 0, 2 * Math.PI);
    context.stroke();
  }
  context.font = `600 ${13 * unit}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.strokeStyle = "#000";
  context.lineWidth = 3 * unit;
  context.strokeText(name, x, y);
  context.fillStyle = "#fff";
  context.fillText(name, x, y);
}

/** A frame around the query pixel, light on dark so that it shows on any picture. */
function drawQuery(context, cell, query) {
  const box = [query[1] * cell[1], query[0] * cell[0], cell[1], cell[0]];
  const unit = context.canvas.width / 320;
  for (const [colour, line] of [["#000", 5], ["#fff", 2.5]]) {
    context.strokeStyle = colour;
    context.lineWidth = line * unit;
    context.strokeRect(...box);
  }
}

/** A line from the query to the centre of mass, and a ring there. */
function drawCentre(context, cell, query, centre) {
  const unit = context.canvas.width / 320;
  const from = [(query[1] + 0.5) * cell[1], (query[0] + 0.5) * cell[0]];
  const to = [from[0] + centre[1] * cell[1], from[1] + centre[0] * cell[0]];
  for (const [colour, line] of [["#000", 4], ["#fff", 1.75]]) {
    context.strokeStyle = colour;
    context.lineWidth = line * unit;
    context.beginPath();
    context.moveTo(...from);
    context.lineTo(...to);
    context.stroke();
    context.beginPath();
    context.arc(...to, 5 * unit, 0, 2 * Math.PI);
    context.stroke();
  }
}
