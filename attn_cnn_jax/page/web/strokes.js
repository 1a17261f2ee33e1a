"use strict";
// An image that a visitor draws.

const INK_SIZE = 240; // of the canvas that strokes are drawn on, in pixels
const BRUSH = 0.11; // width of a stroke on the canvas, as a share of it
const PEN = 0.14; // and in the picture, as a share of the height of the box that the strokes fill
const SEEN = 25; // a value above which a pixel counts as drawn

/** The drawing: `strokes`, lists of places on the canvas, and `ink`, the canvas; null until something is drawn. `index`: of
    its picture. Nothing is said of it while it `isEmpty`. */
const NO_DRAWING = { isOn: false, ink: null, strokes: [], index: null, last: null, isEmpty: true, frame: null };
const drawing = { ...NO_DRAWING };
const canDraw = () => network !== null && data.channels === 1;
const isEmptyDrawing = (index) => index === drawing.index && drawing.isEmpty;

/** Turns the brush on or off. */
function setDrawing(isOn) {
  drawing.isOn = isOn;
  $("draw").setAttribute("aria-pressed", isOn);
  $("clear").hidden = $("copy").hidden = !isOn;
  $("copy").textContent = "Copy link";
  if (isOn && drawing.ink === null) clearDrawing();
  if (isOn) choose({ picture: drawing.index, head: null });
  show();
}

/** An empty canvas to draw on, and its picture among the others. */
function clearDrawing() {
  forgetStrokes();
  scaleDrawing();
}

/** A canvas without strokes; the picture stays. */
function forgetStrokes() {
  const [height, width] = data.size, larger = Math.max(height, width);
  drawing.strokes = [];
  drawing.ink = make("canvas", { width: (INK_SIZE * width) / larger, height: (INK_SIZE * height) / larger });
  drawing.ink.getContext("2d", { willReadFrequently: true });
}

/** A stroke from the last place to this one; places are shares of the canvas, [down, across]. */
function stroke(place) {
  const { ink, strokes, last } = drawing;
  const to = [place[1] * ink.width, place[0] * ink.height + 0.01]; // a dot where the stroke begins
  if (!last || strokes.length === 0) strokes.push([[to[0], to[1] - 0.01]]); // cleared beneath a finger: a new one
  trace(ink.getContext("2d"), [[strokes.at(-1).at(-1), to]], BRUSH * INK_SIZE);
  strokes.at(-1).push(to);
  drawing.last = place;
  scaleDrawing();
}

function trace(context, lines, lineWidth) {
  Object.assign(context, { strokeStyle: "#fff", lineCap: "round", lineJoin: "round", lineWidth });
  context.beginPath();
  for (const line of lines) line.forEach((place, n) => (n ? context.lineTo(...place) : context.moveTo(...place)));
  context.stroke();
}

/** Makes the drawing's picture: the strokes, centred and scaled to the box that the test pictures fill, and drawn there
    with a pen of one width, however large they were. */
function scaleDrawing() {
  const { strokes } = drawing, [height, width] = data.size;
  const fine = 8; // times as many pixels along each axis, halved three times: each pixel is the mean of what it covers
  const large = make("canvas", { width: width * fine, height: height * fine });
  const painter = large.getContext("2d");
  painter.fillRect(0, 0, large.width, large.height); // black
  drawing.isEmpty = strokes.length === 0;
  if (!drawing.isEmpty) {
    const frame = drawing.frame ??= frameOfTests(), pen = PEN * frame.height;
    const [[left, right], [top, bottom]] = [0, 1].map((axis) => extent(strokes.flat().map((place) => place[axis])));
    // A dot stays one: what is smaller than a tenth of the canvas is not made larger than a tenth of the picture.
    const [w, h] = [Math.max(right - left, INK_SIZE / 10), Math.max(bottom - top, INK_SIZE / 10)];
    const scale = Math.min((frame.height - pen) / h, (frame.width - pen) / w);
    painter.scale(fine, fine);
    painter.translate(frame.left + frame.width / 2, frame.top + frame.height / 2);
    painter.scale(scale, scale);
    painter.translate(-(left + right) / 2, -(top + bottom) / 2);
    trace(painter, strokes, pen / scale);
  }
  takeDrawing(reduced(large, [0, 0, large.width, large.height], width, height).canvas);
  if (view.picture === drawing.index) {
    ready = classify();
    later("address", 250, writeAddress);
  }
  show();
}

/** Makes a canvas the drawing's picture, which is added to the others with the first one. */
function takeDrawing(canvas) {
  drawing.index ??= addOwn("your drawing", canvas, canvas.toDataURL());
  const picture = data.pictures[drawing.index];
  picture.image.getContext("2d", { willReadFrequently: true }).drawImage(canvas, 0, 0);
  picture.source = canvas.toDataURL();
  $("pictures").children[drawing.index].querySelector("img").src = picture.source;
  $("copy").disabled = drawing.isEmpty || !textOfDrawing();
}

/** The box of pixels above SEEN, {left, top, width, height}; null where there are none. */
function inkBox(values, width) {
  const seen = Array.from(values.keys()).filter((n) => values[n] > SEEN);
  const [[top, bottom], [left, right]] = [extent(seen.map((n) => Math.floor(n / width))), extent(seen.map((n) => n % width))];
  return seen.length === 0 ? null : { left, top, width: right - left + 1, height: bottom - top + 1 };
}

/** The box that most pictures of the data set fill: medians of its four sides. */
function frameOfTests() {
  const [height, width] = data.size;
  const { pixels, labels } = network.test ?? { pixels: "", labels: [] }, tests = bytesOfText(pixels);
  const bytes = labels.length ? labels.map((_, n) => tests.subarray(n * height * width, (n + 1) * height * width))
    : data.pictures.filter((picture) => picture.label).map((picture) => bytesOf(picture.image));
  const boxes = bytes.map((one) => inkBox(one, width)).filter(Boolean);
  if (boxes.length === 0) return { left: 0, top: 0, width, height };
  const median = (of) => boxes.map(of).sort((a, b) => a - b)[boxes.length >> 1];
  const [left, right] = [median((b) => b.left), median((b) => b.left + b.width)];
  const [top, bottom] = [median((b) => b.top), median((b) => b.top + b.height)];
  return { left, top, width: right - left, height: bottom - top };
}

/** The drawing as text for the address; "" where its image is too large for one. */
const textOfDrawing = () => (data.size[0] * data.size[1] > 1024 ? ""
  : btoa(String.fromCharCode(...bytesOf(data.pictures[drawing.index].image))).replaceAll("+", "-").replaceAll("/", "_"));

/** Copies the address, which holds the drawing. */
async function copyLink() {
  writeAddress();
  const copied = await navigator.clipboard?.writeText(location.href).then(() => true, () => false);
  $("copy").textContent = copied ? "Copied" : "The address has it";
}

/** Makes the image of such a text the drawing, and returns its index; undefined where it is none of this page's size. */
function drawingOfText(text) {
  const [height, width] = data.size;
  let bytes;
  try {
    bytes = bytesOfText(text.replaceAll("-", "+").replaceAll("_", "/"));
  } catch {
    return undefined;
  }
  if (bytes.length !== height * width) return undefined;
  if (drawing.index !== null && text === textOfDrawing()) return drawing.index;
  const image = make("canvas");
  drawBytes(image, bytes, data);
  drawing.isEmpty = !bytes.some((byte) => byte > SEEN);
  forgetStrokes(); // the first one takes the image's place
  takeDrawing(image);
  return drawing.index;
}
