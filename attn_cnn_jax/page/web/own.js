"use strict";
// Pictures of a visitor's own: from a file, dropped, or drawn on the canvas.

const INK_SIZE = 240; // of the canvas that strokes are drawn on, in pixels
const BRUSH = 0.11; // width of a stroke, as a share of the canvas
const SEEN = 25; // a value above which a pixel counts as drawn

/** The drawing: `ink`, strokes as they were made; null until something is drawn. `index`: of its picture. Nothing is said of
    it while it `isEmpty`. */
const drawing = { isOn: false, ink: null, index: null, last: null, isEmpty: true };
const canDraw = () => network !== null && data.channels === 1;
const isEmptyDrawing = (index) => index === drawing.index && drawing.isEmpty;

/** Adds a picture and returns its index. `image`: what can be drawn of it; null for an <img> of `source`. */
function addOwn(name, image, source) {
  data.pictures.push({ name, label: "", source });
  const index = data.pictures.length - 1;
  makePicture(data.pictures[index], index);
  if (image) data.pictures[index].image = image;
  return index;
}

/** Adds a visitor's picture, cut and resized to the size of the others, and chooses it. */
async function addPicture(file) {
  if (!file) return;
  let index;
  try {
    index = addOwn(file.name, null, await fitted(file));
  } catch {
    return complain(`${file.name} cannot be read as a picture.`);
  }
  await data.pictures[index].image.decode();
  if (index === view.picture) ready = classify(); // the first one of a page that came without pictures
  choose({ picture: index });
}

/** A file's image as a data URI: its largest middle part of the page's shape, on white, made smaller by the browser,
    by half at a time, since it skips pixels beyond that. */
async function fitted(file) {
  let image = await createImageBitmap(file, { colorSpaceConversion: "none" }); // Pillow leaves profiles aside, too
  const [height, width] = data.size;
  const step = Math.min(image.height / height, image.width / width);
  const [h, w] = [height * step, width * step];
  let box = [(image.width - w) / 2, (image.height - h) / 2, w, h], context;
  do {
    const size = { width: Math.max(width, Math.ceil(box[2] / 2)), height: Math.max(height, Math.ceil(box[3] / 2)) };
    context = make("canvas", size).getContext("2d", { willReadFrequently: true });
    context.fillStyle = "#fff";
    context.fillRect(0, 0, size.width, size.height);
    context.drawImage(image, ...box, 0, 0, size.width, size.height);
    [image, box] = [context.canvas, [0, 0, size.width, size.height]];
  } while (image.width > width || image.height > height);
  if (data.channels === 1) toGrey(context);
  $("resampled").hidden = step === 1;
  return image.toDataURL();
}

/** Luma of ITU-R 601, in the integers of Pillow's mode "L". */
function toGrey(context) {
  const image = context.getImageData(0, 0, context.canvas.width, context.canvas.height);
  const rgba = image.data;
  for (let n = 0; n < rgba.length; n += 4) {
    rgba[n] = rgba[n + 1] = rgba[n + 2] = (19595 * rgba[n] + 38470 * rgba[n + 1] + 7471 * rgba[n + 2] + 32768) >> 16;
  }
  context.putImageData(image, 0, 0);
}

function complain(text) {
  $("error").textContent = text;
  $("error").hidden = false;
}

// --- drawing ---

/** Turns the brush on or off. */
function setDrawing(isOn) {
  drawing.isOn = isOn;
  $("draw").setAttribute("aria-pressed", isOn);
  $("clear").hidden = !isOn;
  if (isOn && drawing.ink === null) clearDrawing();
  if (isOn) choose({ picture: drawing.index, head: null });
  show();
}

/** An empty canvas to draw on, and its picture among the others. */
function clearDrawing() {
  const [height, width] = data.size;
  const larger = Math.max(height, width);
  drawing.ink = make("canvas", { width: (INK_SIZE * width) / larger, height: (INK_SIZE * height) / larger });
  drawing.ink.getContext("2d", { willReadFrequently: true });
  if (drawing.index === null) {
    const image = make("canvas", { width, height });
    drawing.index = addOwn("your drawing", image, image.toDataURL());
  }
  scaleDrawing();
}

/** A stroke from the last place to this one; places are shares of the canvas, [across, down]. */
function stroke(place) {
  const { ink } = drawing;
  const context = ink.getContext("2d");
  const from = drawing.last ?? place;
  drawing.last = place;
  Object.assign(context, { strokeStyle: "#fff", lineCap: "round", lineWidth: BRUSH * Math.max(ink.width, ink.height) });
  context.beginPath();
  context.moveTo(from[0] * ink.width, from[1] * ink.height);
  context.lineTo(place[0] * ink.width, place[1] * ink.height + 0.01); // a dot where both are the same
  context.stroke();
  scaleDrawing();
}

/** Makes the drawing's picture: the strokes, centred and scaled to the box that the test pictures fill. */
function scaleDrawing() {
  const { ink } = drawing;
  const picture = data.pictures[drawing.index];
  const [height, width] = data.size;
  const context = picture.image.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#000";
  context.fillRect(0, 0, width, height);
  drawing.isEmpty = true;
  const box = inkBox(ink.getContext("2d").getImageData(0, 0, ink.width, ink.height).data, 4, 3, ink.height, ink.width);
  if (box) {
    drawing.isEmpty = false;
    const frame = drawing.frame ??= frameOfTests();
    const scale = Math.min(frame.height / box.height, frame.width / box.width);
    const [w, h] = [box.width * scale, box.height * scale];
    const [x, y] = [frame.left + (frame.width - w) / 2, frame.top + (frame.height - h) / 2];
    const fine = 8; // times as many pixels along each axis, halved three times: each pixel is the mean of what it covers
    const large = make("canvas", { width: width * fine, height: height * fine });
    const painter = large.getContext("2d");
    painter.imageSmoothingQuality = "high";
    painter.drawImage(ink, box.left, box.top, box.width, box.height, x * fine, y * fine, w * fine, h * fine);
    context.drawImage(halved(halved(halved(large))), 0, 0);
  }
  const thumbnail = $("pictures").children[drawing.index].querySelector("img");
  thumbnail.src = picture.image.toDataURL();
  if (view.picture === drawing.index) ready = classify();
  show();
}

/** A canvas of half the size, each pixel the mean of four. */
function halved(image) {
  const half = make("canvas", { width: image.width / 2, height: image.height / 2 });
  half.getContext("2d").drawImage(image, 0, 0, half.width, half.height);
  return half;
}

/** The box of pixels above SEEN, {left, top, width, height}; null where there are none. */
function inkBox(values, step, offset, height, width) {
  let [top, bottom, left, right] = [height, -1, width, -1];
  for (let n = 0; n < height * width; n++) {
    if (values[n * step + offset] <= SEEN) continue;
    const [row, column] = [Math.floor(n / width), n % width];
    [top, bottom, left, right] = [Math.min(top, row), Math.max(bottom, row), Math.min(left, column), Math.max(right, column)];
  }
  return bottom < 0 ? null : { left, top, width: right - left + 1, height: bottom - top + 1 };
}

/** The box that most pictures of the data set fill: medians of its four sides. */
function frameOfTests() {
  const [height, width] = data.size;
  const shown = data.pictures.filter((picture) => picture.label).map((picture) => bytesOf(picture.image));
  const boxes = (network.test ? testPictures() : shown).map((bytes) => inkBox(bytes, 1, 0, height, width)).filter(Boolean);
  if (boxes.length === 0) return { left: 0, top: 0, width, height };
  const median = (of) => boxes.map(of).sort((a, b) => a - b)[boxes.length >> 1];
  const [left, right] = [median((b) => b.left), median((b) => b.left + b.width)];
  const [top, bottom] = [median((b) => b.top), median((b) => b.top + b.height)];
  return { left, top, width: right - left, height: bottom - top };
}

/** The drawing as text for the address; "" where its image is too large for one. */
const textOfDrawing = () => (data.size[0] * data.size[1] > 1024 ? ""
  : btoa(String.fromCharCode(...bytesOf(data.pictures[drawing.index].image))).replaceAll("+", "-").replaceAll("/", "_"));

/** Adds the image of such a text, and returns its index; undefined where it is none of this page's size. */
function drawingOfText(text) {
  let bytes;
  try {
    bytes = bytesOfText(text.replaceAll("-", "+").replaceAll("_", "/"));
  } catch {
    return undefined;
  }
  const [height, width] = data.size;
  if (bytes.length !== height * width) return undefined;
  if (drawing.index !== null) return drawing.index;
  const context = make("canvas", { width, height }).getContext("2d", { willReadFrequently: true });
  context.putImageData(new ImageData(Uint8ClampedArray.from({ length: 4 * bytes.length }, (_, n) => (n % 4 < 3 ? bytes[n >> 2] : 255)), width), 0, 0);
  drawing.isEmpty = !bytes.some((byte) => byte > SEEN);
  return drawing.index = addOwn("your drawing", context.canvas, context.canvas.toDataURL());
}

function listenToOwn() {
  $("file").addEventListener("change", () => {
    addPicture($("file").files[0]);
    $("file").value = ""; // so that the same file, changed meanwhile, can be chosen again
  });
  for (const [event, dropping] of [["dragover", true], ["dragleave", false], ["drop", false]]) {
    document.addEventListener(event, (what) => {
      what.preventDefault();
      document.body.classList.toggle("dropping", dropping);
      if (event === "drop") addPicture(what.dataTransfer.files[0]);
    });
  }
  $("draw").addEventListener("click", () => setDrawing(!drawing.isOn));
  $("clear").addEventListener("click", clearDrawing);
}
