"use strict";
// Saves what is shown as a figure: the picture, all heads, and the class probabilities, as SVG or PNG.

const TILE = 84, TILE_GAP = 6, FIGURE_LEFT = 370, PNG_SCALE = 2;

/** The figure as the text of an SVG file, in the colours of the page. */
function figureSvg() {
  const styles = getComputedStyle(document.documentElement), parts = [];
  const colour = (name) => styles.getPropertyValue(`--${name}`).trim();
  const escaped = (value) => String(value).replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`);
  const add = (tag, attributes, content = "") => {
    const all = Object.entries(attributes).map(([name, value]) => ` ${name}="${escaped(value)}"`).join("");
    parts.push(`<${tag}${all}>${escaped(content)}</${tag}>`);
  };
  const text = (x, y, content, size = 12, fill = "text", anchor = "start") =>
    add("text", { x, y, "font-size": size, fill: colour(fill), "text-anchor": anchor }, content);
  const image = (x, y, width, height, canvas) =>
    add("image", { x, y, width, height, href: canvas.toDataURL(), "image-rendering": "pixelated" });
  const frame = (x, y, width, height, stroke, line) =>
    add("rect", { x, y, width, height, fill: "none", stroke: colour(stroke), "stroke-width": line });

  text(20, 30, data.title, 18);
  text(20, 50, $("facts").textContent, 12, "quiet");
  const stage = $("picture"), height = (320 * stage.height) / stage.width;
  image(20, 70, 320, height, stage);
  let bottom = 90 + height;
  const lines = [$("caption").textContent, $("overlay-text").textContent, `query pixel ${view.query.join(", ")}`, ...differences()];
  for (const line of lines.filter(Boolean)) {
    text(20, bottom, line);
    bottom += 18;
  }
  if (isComputed()) {
    const probabilities = shownProbabilities().at(-1);
    for (const chosen of shownClasses()) {
      const name = network.classes[chosen], share = probabilities[chosen];
      text(95, bottom + 19, name.length > 12 ? `${name.slice(0, 11)}…` : name, 12, "text", "end");
      add("rect", { x: 102, y: bottom + 10, width: (190 * share).toFixed(2), height: 10, fill: colour("accent") });
      text(340, bottom + 19, percent(share), 12, "text", "end");
      bottom += 17;
    }
  }

  let y = 70;
  const tileHeight = (TILE * grid[0]) / grid[1], cell = [tileHeight / grid[0], TILE / grid[1]];
  tiles.forEach((layer, l) => {
    text(FIGURE_LEFT, y + 10, `Layer ${l + 1}`, 12, "quiet");
    layer.forEach(({ canvas }, h) => {
      const x = FIGURE_LEFT + h * (TILE + TILE_GAP);
      image(x, y + 16, TILE, tileHeight, canvas);
      text(x, y + tileHeight + 27, `${h + 1}${view.off.has(`${l},${h}`) ? " off" : ""}`, 10, "quiet");
      frame(x, y + 16, TILE, tileHeight, "line", 1);
      if (isHead(view.head, l, h)) frame(x - 1, y + 15, TILE + 2, tileHeight + 2, "accent", 3);
      frame(x + view.query[1] * cell[1], y + 16 + view.query[0] * cell[0], cell[1], cell[0], "mark", 1.5);
    });
    y += tileHeight + 36;
  });
  text(FIGURE_LEFT, y + 12, `Tiles: ${$("heads-title").textContent.toLowerCase()}; the frame is the query.`, 12, "quiet");
  if (!showsImages()) {
    image(FIGURE_LEFT, y + 20, 110, 10, $("ramp"));
    text(FIGURE_LEFT + 118, y + 30, `from ${$("low").textContent} to ${$("high").textContent}`, 12, "quiet");
  }
  const size = [FIGURE_LEFT + Math.max(...tiles.map((layer) => layer.length)) * (TILE + TILE_GAP) + 20, Math.max(bottom, y + 40) + 20];
  const svg = `<svg width="${size[0]}" height="${size[1]}" viewBox="0 0 ${size.join(" ")}" font-family="system-ui, sans-serif">`
    + `<rect width="100%" height="100%" fill="${colour("page")}"/>${parts.join("")}</svg>`;
  // Through the parser, so that the file is well-formed XML and names its namespace.
  return new XMLSerializer().serializeToString(new DOMParser().parseFromString(svg, "text/html").querySelector("svg"));
}

/** What of the view differs from attention in the network as it was trained, and cannot be seen in the figure itself. */
const differences = () => [
  atEnd() ? "" : `epoch ${$("epoch-text").textContent}`,
  view.softmax ? "" : "scores",
  view.terms.size < data.terms.length ? `score terms: ${[...view.terms].map(termName).join(", ") || "none"}` : "",
  Object.keys(view.moved).length ? "heads moved" : "",
  view.convolved.layers ? `${view.convolved.size} × ${view.convolved.size} convolutions in place of ${$("layers-text").textContent}` : "",
];

const svgAddress = () => `data:image/svg+xml,${encodeURIComponent(figureSvg())}`;

async function pngAddress() {
  const image = make("img", { src: svgAddress() });
  await image.decode();
  const canvas = make("canvas", { width: image.naturalWidth * PNG_SCALE, height: image.naturalHeight * PNG_SCALE });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL();
}

function listenToFigure() {
  const save = (href, download) => make("a", { href, download }).click();
  $("save-svg").addEventListener("click", () => save(svgAddress(), "attention.svg"));
  $("save-png").addEventListener("click", async () => save(await pngAddress(), "attention.png"));
}
