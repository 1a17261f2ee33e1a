"use strict";
// What a visitor brings: images, and networks (open.js), from files that are chosen or dropped.

/** Adds a picture and returns its index. `image`: what can be drawn of it; null for an <img> of `source`. */
function addOwn(name, image, source) {
  const picture = { name, label: "", source }, index = data.pictures.push(picture) - 1;
  makePicture(picture, index);
  if (image) picture.image = image;
  return index;
}

/** Opens the network among some files, or else adds the first as an image and chooses it; says why it cannot. */
async function bring([...files]) {
  const weights = files.find(({ name }) => name.endsWith(".safetensors"));
  try {
    if (weights) await openExport(weights, files.find(({ name }) => name === "config.json"));
    else if (files.length) await addPicture(files[0]);
  } catch (error) {
    $("error").textContent = error.message;
    $("error").hidden = false;
  }
}

/** Adds a visitor's picture, cut and resized to the size of the others, and chooses it. */
async function addPicture(file) {
  const image = await createImageBitmap(file, { colorSpaceConversion: "none" }).catch(() => { // Pillow leaves profiles aside, too
    throw new Error(`${file.name} is no image and no safetensors export. Of a folder drop the files in it.`);
  });
  const index = addOwn(file.name, null, fitted(image));
  await data.pictures[index].image.decode();
  if (index === view.picture) ready = classify(); // the first one of a page that came without pictures
  choose({ picture: index });
}

/** An image as a data URI: its largest middle part of the page's shape, on white, resized by the browser. */
function fitted(image) {
  const [height, width] = data.size;
  const step = Math.min(image.height / height, image.width / width);
  const [h, w] = [height * step, width * step];
  const context = reduced(image, [(image.width - w) / 2, (image.height - h) / 2, w, h], width, height);
  if (data.channels === 1) toGrey(context);
  $("resampled").hidden = step === 1;
  return context.canvas.toDataURL();
}

/** Draws a box [left, top, width, height] of an image on a canvas, and makes it smaller by half at a time, since browsers skip
    pixels beyond that. */
function reduced(image, box, width, height) {
  let context;
  do {
    const size = { width: Math.max(width, Math.ceil(box[2] / 2)), height: Math.max(height, Math.ceil(box[3] / 2)) };
    context = make("canvas", size).getContext("2d", { willReadFrequently: true });
    context.fillStyle = "#fff";
    context.fillRect(0, 0, size.width, size.height);
    context.drawImage(image, ...box, 0, 0, size.width, size.height);
    [image, box] = [context.canvas, [0, 0, size.width, size.height]];
  } while (image.width > width || image.height > height);
  return context;
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

function listenToOwn() {
  $("file").addEventListener("change", () => {
    bring($("file").files);
    $("file").value = ""; // so that the same file, changed meanwhile, can be chosen again
  });
  for (const name of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(name, (/** @type {any} */ event) => {
      event.preventDefault();
      document.body.classList.toggle("dropping", name === "dragover");
      if (name === "drop") bring(event.dataTransfer.files);
    });
  }
  $("draw").addEventListener("click", () => setDrawing(!drawing.isOn));
  $("clear").addEventListener("click", clearDrawing);
  $("copy").addEventListener("click", copyLink);
  $("close").addEventListener("click", closeExport);
}
