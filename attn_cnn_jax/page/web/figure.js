"use strict";
// Saves what is shown as a figure: the picture, all heads, and the class probabilities, as SVG or PNG.

const TILE = 84, TILE_GAP = 6, FIGURE_LEFT = 370, PNG_SCALE = 2;

const escaped = (text) => String(text).replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`);

/** The figure as the text of an SVG file, in the colours of the page. */
function figureSvg() {
  const styles = getComputedStyle(document.documentElement);
  const colour = (name) => styles.getPropertyValue(`--${name}`).trim();
  const parts = [];
  const text = (x, y, content, size = 13, fill = "text", anchor = "start") => parts.push(
    `<text x="${x}" y="${y}" font-size="${size}" fill="${colour(fill)}" text-anchor="${anchor}">${escaped(content)}</text>`);
  const image = (x, y, width, height, canvas) => parts.push(
    `<image x="${x}" y="${y}" width="${width}" height="${height}" href="${canvas.toDataURL()}" image-rendering="pixelated"/>`);
  const frame = (x, y, width, height, stroke, line) => parts.push(
    `<rect x="${x}" y="${y}" width="${width}" height="${height}" fill="none" stroke="${colour(stroke)}" stroke-width="${line}"/>`);

  text(20, 30, data.title, 18);
  text(20, 50, $("facts").textContent, 12, "quiet");
  const stage = $("picture");
  const [width, height] = [320, (320 * stage.height) / stage.width];
  image(20, 70, width, height, stage);
  const lines = [$("caption").textContent, $("overlay-text").textContent, `query pixel ${view.query.join(", ")}`, ...differences()]
    .filter(Boolean);
  lines.forEach((line, n) => text(20, 90 + height + 18 * n, line, 12));
  let bottom = 90 + height + 18 * lines.length;
  if (isComputed()) bottom = figureBars(bottom + 8, text, parts, colour);

  let y = 70;
  const tileHeight = (TILE * grid[0]) / grid[1];
  tiles.forEach((layer, l) => {
    text(FIGURE_LEFT, y + 10, `Layer ${l + 1}${view.skipped.has(l) ? " (off)" : ""}`, 12, "quiet");
    layer.forEach(({ canvas }, h) => {
      const x = FIGURE_LEFT + h * (TILE + TILE_GAP);
      image(x, y + 16, TILE, tileHeight, canvas);
      text(x, y + tileHeight + 27, `${h + 1}${view.off.has(`${l},${h}`) ? " off" : ""}`, 10, "quiet");
      frame(x, y + 16, TILE, tileHeight, "line", 1);
      if (isHead(view.head, l, h)) frame(x - 1, y + 15, TILE + 2, tileHeight + 2, "accent", 3);
      const [high, wide] = [tileHeight / grid[0], TILE / grid[1]];
      frame(x + view.query[1] * wide, y + 16 + view.query[0] * high, wide, high, "mark", 1.5);
    });
    y += tileHeight + 36;
  });
  text(FIGURE_LEFT, y + 12, `Tiles: ${$("heads-title").textContent.toLowerCase()}; the frame is the query.`, 12, "quiet");
  if (!showsImages()) {
    image(FIGURE_LEFT, y + 20, 110, 10, $("ramp"));
    text(FIGURE_LEFT + 118, y + 30, `from ${$("low").textContent} to ${$("high").textContent}`, 12, "quiet");
  }
  y += 40;
  const most = Math.max(...data.layers.map((layer) => layer.heads));
  const size = [FIGURE_LEFT + most * (TILE + TILE_GAP) + 20, Math.max(bottom, y) + 20];
  const svg = `<svg width="${size[0]}" height="${size[1]}" viewBox="0 0 ${size.join(" ")}" font-family="system-ui, sans-serif">`
    + `<rect width="100%" height="100%" fill="${colour("page")}"/>${parts.join("")}</svg>`;
  // Through the parser, so that the file is well-formed XML and names its namespace.
  return new XMLSerializer().serializeToString(new DOMParser().parseFromString(svg, "text/html").querySelector("svg"));
}

/** What of the view differs from attention in the network as it was trained, and cannot be seen in the figure itself. */
function differences() {
  return [
    atEnd() ? "" : `epoch ${$("epoch-text").textContent}`,
    view.softmax ? "" : "scores",
    view.terms.size < data.terms.length ? `score terms: ${[...view.terms].map(termName).join(", ") || "none"}` : "",
    Object.keys(view.moved).length ? "heads moved" : "",
    view.convolved.layers ? `${view.convolved.size} × ${view.convolved.size} convolutions in place of ${$("layers-text").textContent}` : "",
  ];
}

const shortened = (name, most) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);

/** Bars of the class probabilities from `y` on; returns where they end. */
function figureBars(y, text, parts, colour) {
  const probabilities = classProbabilities(classified.logits.at(-1));
  for (const chosen of shownClasses()) {
    text(95, y + 11, shortened(network.classes[chosen], 12), 12, "text", "end");
    parts.push(`<rect x="102" y="${y + 2}" width="${(190 * probabilities[chosen]).toFixed(2)}" height="10" fill="${colour("accent")}"/>`);
    text(340, y + 11, percent(probabilities[chosen]), 12, "text", "end");
    y += 17;
  }
  return y;
}

/** The figure as a PNG blob. */
async function figurePng() {
  const image = make("img", { src: URL.createObjectURL(new Blob([figureSvg()], { type: "image/svg+xml" })) });
  await image.decode();
  const canvas = make("canvas", { width: image.naturalWidth * PNG_SCALE, height: image.naturalHeight * PNG_SCALE });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(image.src);
  return new Promise((resolve) => canvas.toBlob(resolve));
}

function download(blob, name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function listenToFigure() {
  $("save-svg").addEventListener("click", () => download(new Blob([figureSvg()], { type: "image/svg+xml" }), "attention.svg"));
  $("save-png").addEventListener("click", async () => download(await figurePng(), "attention.png"));
}
