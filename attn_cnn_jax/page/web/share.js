"use strict";
// Beside another run in one page (pair.html): both show the same query pixel and the same picture.

const isBeside = window.name === "beside";

/** Tells the other run what is chosen or pointed at here. */
function share(changes) {
  if (isBeside) parent.postMessage({ shared: changes }, "*");
}

/** What the other run has chosen, as far as it exists here. */
function takeShared({ query, pointed: other, picture }) {
  const isPixel = (pair) => Array.isArray(pair) && pair.every((n, axis) => Number.isInteger(n) && n >= 0 && n < grid[axis]);
  if (other !== undefined) pointed.query = isPixel(other) ? other : null;
  const changes = {};
  if (isPixel(query)) changes.query = query;
  if (Number.isInteger(picture) && data.pictures[picture]) changes.picture = picture;
  choose(changes, true);
}

function listenToShared() {
  addEventListener("message", (event) => {
    if (isBeside && event.source === parent && event.data?.shared) takeShared(event.data.shared);
  });
}
