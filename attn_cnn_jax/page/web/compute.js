"use strict";
// Asks the worker about the chosen picture and the test pictures, and keeps its answers.

const network = data.network; // null where the page cannot compute
let ask = null; // sends a message to the worker
let asked = 0; // number of the newest question
const answers = new Map(); // {resolve, message} of questions without an answer yet, by their number

/** What the network says of a picture; null until the first answer, and where the page cannot compute. `picture` (its
    index), `skipped` (layers that were off), `logits` after each layer, `pixelLogits`, `content`, `attention` (of each layer, the mean over its heads that
    are on; null without any), `milliseconds`. */
let classified = null;

/** Test pictures that are classified right, {right, of}: by the network as it was trained, and as it is changed now. */
const accuracy = { original: null, now: null };

function startWorker() {
  const { weights: text, test, ...rest } = network;
  const weights = floatsOf(text);
  delete network.weights; // the text is not needed any more
  const pictures = test && { pixels: bytesOfText(test.pixels), labels: test.labels };
  const start = { start: { network: rest, weights, grid, test: pictures } };
  const receive = (answer) => {
    answers.get(answer.id)?.resolve(answer);
    answers.delete(answer.id);
  };
  const computeHere = () => { // where workers are not allowed, which some browsers say at once and some later
    ask = answerer(receive);
    ask(start);
    for (const { message } of [...answers.values()]) ask(message);
  };
  try {
    const source = ["numbers.js", "maps.js", "network.js", "worker.js"].map((name) => $(name).textContent).join("\n");
    const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    const worker = new Worker(address);
    worker.onmessage = (event) => receive(event.data);
    worker.onerror = computeHere;
    ask = (message) => worker.postMessage(message);
    ask(start);
  } catch {
    computeHere();
  }
}

/** Sends a question about the network as `state`, a view, has it; resolves with the answer. */
function question(kind, state, details = {}) {
  const id = ++asked;
  const message = { [kind]: { ...details, id, layers: layersOf(state), changes: changesOf(state) } };
  return new Promise((resolve) => {
    answers.set(id, { resolve, message });
    ask(message);
  });
}

let computing = null, isStale = false;

/** Classifies the chosen picture as the view has it; asked again meanwhile, once more. */
function classify() {
  isStale = true;
  computing ??= (async () => {
    try {
      while (isStale) {
        isStale = false;
        await classifyOnce();
      }
    } finally {
      computing = null;
    }
  })();
  return computing;
}

async function classifyOnce() {
  const index = view.picture;
  const picture = data.pictures[index];
  if (!picture) return;
  await picture.image.decode?.(); // a canvas has nothing to decode
  const { skipped } = view;
  const answer = await question("classify", view, { bytes: bytesOf(picture.image) });
  if (index !== view.picture) return;
  classified = { ...answer, picture: index, skipped };
  content = answer.content[0] ? answer.content : null;
  show();
}

let counting = null; // number of the newest question about accuracy

/** Counts the test pictures that the network gets right, as a view has it. */
function count(state) {
  const answer = question("count", state);
  counting = asked;
  return answer;
}

/** Forgets the accuracy of a network that was changed meanwhile, and an answer that is still to come. */
function forgetCount() {
  accuracy.now = null;
  answers.delete(counting);
}

/** Counts for the network as it was trained, once, and as the view has it. */
async function countRight() {
  if (!network?.test) return;
  forgetCount();
  accuracy.original ??= await count({ ...view, ...unchanged() });
  show();
  if (!isChanged(view)) return;
  accuracy.now = await count(view);
  show();
}

/** The pixels of each test picture that the page counts, as bytes. */
function testPictures() {
  const bytes = bytesOfText(network.test.pixels);
  const size = bytes.length / network.test.labels.length;
  return network.test.labels.map((_, n) => bytes.subarray(n * size, (n + 1) * size));
}

const bytesOfText = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));

/** Pixels of an image or canvas, `channels` bytes each. */
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

/** Probabilities of the classes from logits. */
const classProbabilities = (logits) => softmax(Float64Array.from(logits));
