"use strict";
// Five steps from attention to convolution, each a view of the instrument below.

/** The head of the first layer that attends to most pixels at once, or to fewest (`sign` -1), by the largest entropy of its
    attention from the corners and the middle: from one of them all that it looks at lies in the image. Of the layer as it
    was trained: what the page shows at the moment has no part in it. */
function extremeHead(sign) {
  const queries = [initialView.query, ...[0, grid[0] - 1].flatMap((i) => [[i, 0], [i, grid[1] - 1]])];
  const entropyAt = (h, query) =>
    entropyOf(headProbabilities(data.layers[0], h, answered?.content?.[0]?.[h], query, grid, initialView.terms));
  const entropies = Array.from({ length: data.layers[0].heads }, (_, h) => sign * Math.max(...queries.map((q) => entropyAt(h, q))));
  return entropies.indexOf(Math.max(...entropies));
}

/** Whether layer 1's heads began on whole shifts, each its own: where an initialisation puts them, and no training. */
function beganOnGrid() {
  const { epoch, layers } = data.epochs[0] ?? {}, centres = layers?.[0].position.centre ?? [];
  return epoch === 0 && new Set(centres.map(String)).size === centres.length && centres.flat().every(Number.isInteger);
}

const sideOfGrid = () => `${Math.sqrt(data.layers[0].heads)} × ${Math.sqrt(data.layers[0].heads)}`;

/** What says how good the network is, and the word for that in a sentence. */
const whatSays = () => (network?.test ? "the accuracy says" : "the class probabilities say");

/** What a step shows, over the view as the page starts: {title, text, changes}; `changes` is a function.
    @type {{ title: string, text: (heads?: string) => string, changes: () => Partial<View>, needs?: () => boolean }[]} */
const STEPS = [
  {
    title: "One pixel asks",
    text: (heads) => `The framed pixel is the query, and ${heads} of layer 1 answer: each with the mean around one place. `
      + (centresOf(0).length > 0 ? "A numbered ring is where a head looks, and how widely." : "Darker pixels count more.")
      + (beganOnGrid() ? ` They began exactly on a ${sideOfGrid()} grid: that pattern was given, not found.` : ""),
    changes: () => (centresOf(0).length > 0 ? {} : { head: [0, extremeHead(-1)] }),
  },
  {
    title: "Move it: the answers move along",
    text: () => "From another pixel each head looks at the same shift. One that looks to the left and down moves the "
      + "whole image to the right and up, which is what its tile shows.",
    changes: () => ({ query: grid.map((n) => Math.floor(n / 4)), head: [0, extremeHead(-1)] }),
  },
  {
    title: "Side by side: a convolution",
    text: () => "A shift and its weight are one entry of a kernel. Here layer 1 is the 3 × 3 convolution made of its own heads. "
      + "It loses what they read outside the kernel, and at the border it reads zeros, where attention never looks: "
      + `${whatSays()} what that costs. Choose a larger kernel.`,
    changes: () => ({ convolved: { layers: 1, size: 3 } }),
    needs: () => canConvolve(),
  },
  {
    title: "A soft head blurs",
    text: () => "The chosen head spreads its weight over many pixels, so its tile is a blur. A small kernel cannot give that; "
      + "a large one can.",
    changes: () => ({ head: [0, extremeHead(1)] }),
  },
  {
    title: "Switch heads off",
    text: () => `Head ${(network.costliest ?? 0) + 1} of layer 1 is off${network.costliest === null ? ""
      : `, the one that ${network.test ? "costs most" : "these images need most"}`}: ${whatSays()} what it was worth. Choose another `
      + "head, and switch it off.",
    changes: () => ({ head: [0, network.costliest ?? 0], off: new Set([`0,${network.costliest ?? 0}`]) }),
    needs: () => network !== null,
  },
];

const shownSteps = () => STEPS.filter(({ needs }) => needs?.() ?? true);

/** The view of a step, the same whatever was shown before; the image stays.
    @type {(number: number) => View} */
function viewOfStep(number) {
  return { ...initialView, picture: view.picture, step: number, ...shownSteps()[number].changes() };
}

function makeSteps() {
  const count = data.layers[0].heads, heads = `${count} head${count === 1 ? "" : "s"}`;
  $("lead-shift").textContent = data.contentTerms.length
    ? "Where its weights depend on how a pixel lies to the query, and not on what is in the image, it moves the image by a shift."
    : "Its weights depend only on how a pixel lies to the query: so it moves the whole image by a shift, and blurs it.";
  shownSteps().forEach(({ title, text }, n) => {
    const button = make("button", { type: "button" }, make("b", { textContent: `${n + 1} ${title}` }),
      make("span", { textContent: text(heads) }));
    button.addEventListener("click", () => choose(viewOfStep(n)));
    $("steps").append(make("li", {}, button));
  });
}

function showSteps() {
  [...$("steps").children].forEach((item, n) => {
    const isNew = n === view.step && item.firstChild.ariaPressed !== "true";
    item.firstChild.ariaPressed = n === view.step;
    if (isNew && $("steps").scrollWidth > $("steps").clientWidth) $("steps").scrollTo({ left: item.offsetLeft - $("steps").offsetLeft });
  });
}

/** Where the steps do not fit beside one another, the one that is scrolled to is chosen; arrow keys go on to the next. */
function listenToSteps() {
  const steps = $("steps");
  steps.addEventListener("scrollend", () => {
    if (steps.scrollWidth - steps.clientWidth < 2) return;
    const nearest = Math.round((steps.scrollLeft / (steps.scrollWidth - steps.clientWidth)) * (steps.children.length - 1));
    if (nearest !== view.step) choose(viewOfStep(nearest));
  });
  steps.addEventListener("keydown", (event) => {
    const [, along] = ARROWS[event.key] ?? [0, 0];
    const next = [...steps.children].indexOf(event.target.closest("li")) + along;
    if (!along || !steps.children[next]) return;
    event.preventDefault();
    choose(viewOfStep(next));
    steps.children[next].firstChild.focus();
  });
}
