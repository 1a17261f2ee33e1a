"use strict";
// Opens a safetensors export of this package in place of the run that the page came with.

const CENTRED = { quadratic: "quadratic", quadratic_generalized: "gaussian" }; // encodings whose parameters say it all

/** Reads an export and shows it; an Error says why it cannot. `config`: config.json, for files that do not hold theirs. */
async function openExport(file, config) {
  const found = exportOf(await file.arrayBuffer(), config && JSON.parse(await config.text()), file.name);
  const old = data, images = data.pictures.map(({ image }) => image);
  const isAlike = `${found.size},${found.channels}` === `${old.size},${old.channels}`;
  const { classes } = found.network;
  if (isAlike && `${classes}` === `${network?.classes}`) found.network.test = network.test;
  openRun(found);
  images.forEach((image, n) => {
    const { name, label, source } = old.pictures[n];
    data.pictures.push({ name, label: classes.includes(label) ? label : "", source: isAlike ? source : fitted(image) });
  });
  await beginAnew();
}

/** Goes back to the run that the page came with; images that were brought to it stay. */
async function closeExport() {
  openRun(ownData);
  await beginAnew();
}

async function beginAnew() {
  history.replaceState(null, "", "#"); // it named a view of the other run
  await begin();
}

/** What page_data of build.py returns, of the bytes of a safetensors file. */
function exportOf(bytes, given, name) {
  const { metadata, entries, weights } = safetensors(bytes, name);
  const config = metadata.config ? JSON.parse(metadata.config) : given;
  if (!config) fail(`${name}: bring config.json, which lies beside it, at the same time.`);
  const { model, dataset } = config, kind = CENTRED[model.encoding];
  if (model.name !== "attention" || !kind) {
    fail(`${name} has ${model.encoding ?? model.name} in it: here open networks with a quadratic encoding; attn-cnn page shows any.`);
  }
  if (!dataset.mean?.length) fail(`The configuration of ${name} has no mean and standard deviation of its images.`);
  const place = (array) => entries[array] ?? fail(`${name} has no ${array}: it is no network of its configuration.`);
  const linear = (map) => ({ kernel: place(`${map}.kernel`), bias: entries[`${map}.bias`] ?? null });
  const norm = (layer) => ({ scale: place(`${layer}.scale`), bias: place(`${layer}.bias`) });
  const optional = (map) => (entries[`${map}.kernel`] ? linear(map) : null);
  /** @type {(place: { at: number, shape: number[] }) => any[]} */
  const numbers = ({ at, shape: [rows, ...rest] }) => (rest.length === 0 ? Array.from(weights.subarray(at, at + rows))
    : Array.from({ length: rows }, (_, n) => numbers({ at: at + n * rest.reduce((a, b) => a * b), shape: rest })));
  const layers = [], ofNetwork = [];
  for (let l = 0; l < model.num_layers; l++) {
    const block = `blocks.${l}`, attention = `${block}.attention`, content = `${attention}.content`;
    const [centre, spread] = ["centre", "spread"].map((array) => numbers(place(`${attention}.position.${array}`)));
    const gate = model.gate ? numbers(place(`${attention}.gate`)).map((x) => 1 / (1 + Math.exp(-x))) : null;
    layers.push({ heads: centre.length, position: { term: "position", kind, centre, spread }, gate });
    const terms = { content: { kind: "product", query: "content", key: "content" } };
    ofNetwork.push({
      readers: model.content ? [{ query: linear(`${content}.query`), key: linear(`${content}.key`), terms }] : [],
      value: optional(`${attention}.value`), output: linear(`${attention}.output`), dense: optional(`${block}.dense`),
      attentionNorm: norm(`${block}.attention_norm`), intermediate: linear(`${block}.intermediate`),
      transformed: linear(`${block}.output`), outputNorm: norm(`${block}.output_norm`),
    });
  }
  const [height, width, channels] = model.image_shape, contentTerms = model.content ? ["content"] : [];
  const encoding = model.encoding + (model.content ? " + content" : "") + (model.gate ? " (gated)" : "");
  return {
    ...data, title: `What the heads of an opened network for ${dataset.name} attend to`,
    facts: { dataset: name, encoding, step: metadata.step },
    size: [height, width], grid: [height, width].map((side) => side / model.downsample), channels,
    terms: [...contentTerms, "position"], contentTerms, layers, epochs: [], pictures: [],
    network: {
      downsample: model.downsample, window: model.window || model.downsample,
      mean: dataset.mean, std: dataset.std, epsilon: data.epsilon, test: null, costliest: null, weights,
      classes: Array.from({ length: model.num_classes }, (_, n) => dataset.class_names[n] ?? `class ${n}`),
      embedding: linear("embedding"), layers: ofNetwork, classifier: linear("classifier"),
      norm: entries["norm.scale"] ? norm("norm") : null,
    },
  };
}

/** A file's `metadata`; `entries`, {at, shape} of each array by name, in numbers; and `weights`, all numbers. */
function safetensors(bytes, name) {
  try {
    const start = 8 + Number(new DataView(bytes).getBigUint64(0, true));
    const { __metadata__: metadata = {}, ...arrays } = JSON.parse(new TextDecoder().decode(bytes.slice(8, start)));
    const { dtype } = Object.values(arrays)[0], size = { F16: 2, F32: 4 }[dtype], numbers = bytes.slice(start);
    const weights = numbersOf(numbers, size === 2);
    const entries = Object.fromEntries(Object.entries(arrays).map(([array, { shape, data_offsets: [from, end], ...of }]) => {
      if (!size || of.dtype !== dtype || end > numbers.byteLength) throw new Error(of.dtype);
      return [array, { at: from / size, shape }];
    }));
    return { metadata, entries, weights };
  } catch {
    return fail(`${name} is damaged, or no safetensors file of float32 or float16 numbers.`);
  }
}

/** @type {(text: string) => never} */
function fail(text) {
  throw new Error(text);
}
