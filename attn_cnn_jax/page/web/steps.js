"use strict";
// Five steps from attention to convolution, each a view of the instrument below.

/** The head of the first layer that attends to most pixels at once, or to fewest (`sign` -1), by the largest entropy of its
    attention from the corners and the middle: from one of them all that it looks at lies in the image. */
function extremeHead(sign) {
  const queries = [initialView.query, ...[0, grid[0] - 1].flatMap((i) => [[i, 0], [i, grid[1] - 1]])];
  const entropyAt = (h, query) => entropyOf(probabilitiesOf(0, h, query));
  const entropies = Array.from({ length: data.layers[0].heads }, (_, h) => sign * Math.max(...queries.map((q) => entropyAt(h, q))));
  return entropies.indexOf(Math.max(...entropies));
}

/** What a step shows, over the view as the page starts: {title, text, changes}; `changes` is a function. */
const STEPS = [
  {
    title: "One pixel asks",
    text: (heads) => `The framed pixel is the query, and ${heads} of layer 1 answer: each with the mean around one place. `
      + (centresOf(0).length > 0 ? "A numbered ring is where a head looks, and how widely." : "Darker pixels count more."),
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
    text: () => "A shift and its weight are one entry of a kernel. Here layer 1 is the 3 × 3 convolution made of its own heads, "
      + "which loses those that look farther: choose a larger kernel, and see the accuracy come back.",
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
    text: () => "Head 1 of layer 1 is off: the accuracy says what it was worth. Choose another head, and switch it off below "
      + "its tile.",
    changes: () => ({ head: [0, 0], off: new Set(["0,0"]) }),
    needs: () => network !== null,
  },
];

const shownSteps = () => STEPS.filter(({ needs }) => needs?.() ?? true);

/** The view of a step, as changes of the current one: the image stays. */
function viewOfStep(number) {
  return { ...initialView, query: view.query, picture: view.picture, step: number, ...shownSteps()[number].changes() };
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
