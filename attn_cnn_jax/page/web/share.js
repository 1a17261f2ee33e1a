"use strict";
// Beside another run in one page (pair.html): both show the same place as query and the same picture.

const isBeside = window.name === "beside";
const givenPictures = data.pictures.length; // that the page came with: a visitor's own follow, on one side only

/** The middle of a pixel as shares of the picture's height and width, which mean the same on any grid. */
const placeOfPixel = (query) => query.map((n, axis) => (n + 0.5) / grid[axis]);

/** The pixel at a place; between two pixels the later one, in spite of rounding. */
const pixelAtPlace = (place) => place.map((share, axis) => Math.floor(share * grid[axis] + 1e-9));

/** Tells the other run what is chosen or pointed at here. */
function share({ query, pointed: other, picture }) {
  if (!isBeside) return;
  const shared = {};
  if (query) shared.query = placeOfPixel(query);
  if (other !== undefined) shared.pointed = other && placeOfPixel(other);
  if (picture < givenPictures) shared.picture = picture;
  parent.postMessage({ shared }, "*");
}

/** What the other run has chosen, as far as it exists here. */
function takeShared({ query, pointed: other, picture }) {
  const isPlace = (pair) => Array.isArray(pair) && pair.length === 2 && pair.every((n) => n >= 0 && n < 1);
  if (other !== undefined) pointed.query = isPlace(other) ? pixelAtPlace(other) : null;
  const changes = {};
  if (isPlace(query)) changes.query = pixelAtPlace(query);
  if (Number.isInteger(picture) && picture >= 0 && picture < givenPictures) changes.picture = picture;
  choose(changes, true);
}

function listenToShared() {
  addEventListener("message", (event) => {
    if (isBeside && event.source === parent && event.data?.shared) takeShared(event.data.shared);
  });
}
