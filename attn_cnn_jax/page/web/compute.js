"use strict";
// Asks the worker about the chosen image and the test images, and keeps its answers.

const MOST_ATTENTION = 2 ** 26; // probabilities of all layers, which a browser holds at once

let ask = null; // sends a message to the worker
let asked = 0; // number of the newest question
/** @type {Map<number, { resolve: (answer: any) => void, first: (answer: any) => void, message: object }>} */
const answers = new Map(); // {resolve, first, message} of questions without an answer yet, by their number

/** The worker's answer for an image; null until the first one. `picture` (its index), `shifted` (what each layer's heads make
    of the image, as bytes), and where the page has the network `logits` after each layer, `content` (factors of
    scores) and `kernels`.
    @type {Answer | null} */
let answered = null;

/** `answered`, where the network says something of an image; null for a canvas without strokes.
    @type {Answer | null} */
let classified = null;

/** Test images that are classified right, {right, of}: by the network as it was trained, as it is changed now, and so with the
    layers' own attention inside the kernels in place of convolutions.
    @type {Record<string, Count | null>} */
const accuracy = { original: null, now: null, truncated: null };

const canAsk = () => network !== null || data.layers.reduce((sum, { heads }) => sum + heads, 0) * pixels ** 2 <= MOST_ATTENTION;

/** Starts the worker, and tells it of the network. */
function startWorker() {
  const receive = (answer) => {
    if (answer.isFirst) return answers.get(answer.id)?.first(answer);
    answers.get(answer.id)?.resolve(answer);
    answers.delete(answer.id);
  };
  const computeHere = () => { // where workers are not allowed, which some browsers say at once and some later
    ask = answerer(receive);
    startNetwork();
    for (const { message } of [...answers.values()]) ask(message);
  };
  try {
    const worker = new Worker(URL.createObjectURL(new Blob([$("worker").textContent], { type: "text/javascript" })));
    worker.onmessage = (event) => receive(event.data);
    worker.onerror = computeHere;
    ask = (message) => worker.postMessage(message);
    startNetwork();
  } catch {
    computeHere();
  }
}

/** Tells the worker which network it is; what it said of another one is forgotten. */
function startNetwork() {
  if (typeof network?.weights === "string") network.weights = numbersOf(bytesOfText(network.weights).buffer, network.half);
  const { weights, test, ...rest } = network ?? {};
  const counted = test && { pixels: bytesOfText(test.pixels), labels: test.labels };
  ask({ start: { network: network && rest, weights, grid, size: data.size[0] / grid[0], test: counted } });
}

/** Sends a question about the network as `state`, a view, has it; resolves with the answer; `first` gets those before it. */
function question(kind, state, details = {}, first = () => {}) {
  const id = ++asked;
  const message = { [kind]: { ...details, id, layers: layersOf(state), changes: changesOf(state) } };
  return new Promise((resolve) => {
    answers.set(id, { resolve, first, message });
    ask(message);
  });
}

let computing = null, isStale = false;

/** Asks about the chosen image as the view has it; asked again meanwhile, once more. */
function classify() {
  isStale = true;
  computing ??= (async () => {
    while (isStale) {
      isStale = false;
      await classifyOnce();
    }
  })().finally(() => { computing = null; });
  return computing;
}

async function classifyOnce() {
  const index = view.picture;
  const picture = data.pictures[index];
  if (!picture || !canAsk()) return;
  await picture.image.decode?.(); // a canvas has nothing to decode
  const answer = await question("classify", view, { bytes: bytesOf(picture.image) });
  if (index !== view.picture) return;
  answered = { ...answer, picture: index };
  classified = network && !isEmptyDrawing(index) ? answered : null;
  show();
}

/** Counts the test images that the network gets right: as it was trained, once, and as the view has it. */
async function countRight() {
  if (!network?.test) return;
  forgetCount();
  const count = async (name, state) => {
    const put = (answer) => { accuracy[name] = answer; show(); };
    const answer = question("count", state, {}, put); // `put` first gets the count of the first ones
    counting = asked;
    put(await answer);
  };
  if (accuracy.original?.of !== network.test.labels.length) await count("original", { ...view, ...unchanged() });
  if (isChanged(view)) await count("now", view);
  if (view.convolved.layers > 0) await count("truncated", { ...view, convolved: { ...view.convolved, isTruncated: true } });
}

let counting = null; // number of the newest question about accuracy

/** Forgets the accuracy of a network that was changed meanwhile, and an answer that is still to come. */
function forgetCount() {
  accuracy.now = accuracy.truncated = null;
  answers.delete(counting);
}

/** Pixels of an image or canvas, `channels` bytes each.
    @type {(image: any) => Uint8Array} */
function bytesOf(image) {
  const [height, width] = data.size;
  const context = make("canvas", { width, height }).getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0, width, height);
  const rgba = context.getImageData(0, 0, width, height).data;
  const bytes = new Uint8Array(height * width * data.channels);
  for (let n = 0; n < bytes.length; n++) {
    bytes[n] = rgba[4 * Math.floor(n / data.channels) + (n % data.channels)];
  }
  return bytes;
}
