"use strict";
// What lies over the image: a head's attention, what each pixel adds to a logit, or centres.

const OVERLAYS = {
  head: "the chosen head",
  centres: "centres of heads",
  contribution: "contribution to a class",
};

/** The overlays that this page can show. */
function overlayNames() {
  const possible = { head: true, centres: hasCentres(), contribution: network !== null };
  return Object.keys(OVERLAYS).filter((name) => possible[name]);
}

const hasCentres = () => [data, ...data.epochs.slice(0, 1)].some(({ layers }) => layers?.some((layer) => layer.position?.centre));

/** The class whose logit is explained. */
const explainedClass = () => view.class ?? indexOfLargest(classified.logits.at(-1));

/** What to draw over the picture: {map, range, signed, centre, handle}, {centres} or null. `head` is the chosen one. */
function overlayOf(name, head, map, range, statistics) {
  if (name === "centres" && !view.head) return { centres: centresOf(head?.[0] ?? 0) };
  if (name === "contribution" && isComputed()) return { ...mapOverlay(contributions(explainedClass())), signed: true };
  if (!["head", "centres"].includes(name) || !head) return null;
  const centre = view.softmax ? [statistics.row, statistics.column] : null;
  const handle = canMove(view.head) && isHead(view.head, ...head) ? moveOf(head).centre : null;
  return { map, range, centre, handle };
}

const mapOverlay = (map) => ({ map, range: [0, Math.max(...map.map(Math.abs))] });

/** Centres of a layer's heads, as shifts from the query: {centre, name, radius}, of one standard deviation. They are
    parameters, or else as recorded. */
function centresOf(layer) {
  const { heads, ...shown } = shownLayer(layer);
  const position = shown.position?.centre ? shown.position : data.epochs[view.epoch]?.layers?.[layer].position;
  if (!position?.centre) return [];
  return Array.from({ length: heads }, (_, h) => {
    const spread = position.spread[h];
    const size = Array.isArray(spread) ? Math.sqrt(Math.abs(spread[0][0] * spread[1][1] - spread[0][1] * spread[1][0])) : spread;
    return { centre: position.centre[h], name: String(h + 1), radius: 1 / Math.max(Math.abs(size), 1e-6) };
  });
}

/** What each pixel of the last layer adds to the logit of a class, less what it adds to all classes on average. The
    classifier is linear in the mean over pixels, so that the sum is the logit less the mean logit. */
function contributions(chosen) {
  const classes = network.classes.length;
  return Float64Array.from({ length: pixels }, (_, p) => {
    const logits = classified.pixelLogits.subarray(p * classes, (p + 1) * classes);
    const mean = logits.reduce((sum, value) => sum + value, 0) / classes;
    return (logits[chosen] - mean) / pixels;
  });
}

/** One line below the picture that says what lies over it. */
function overlayText(name, head) {
  if (name === "contribution" && isComputed()) {
    return `What each pixel adds to ${network.classes[explainedClass()]}: orange for it, blue against it.`;
  }
  const layer = head?.[0] ?? 0;
  if (name === "centres" && !view.head && centresOf(layer).length) {
    return `Where the heads of layer ${layer + 1} look from here; a ring's radius is one standard deviation.`;
  }
  return "";
}
