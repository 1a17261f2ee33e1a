"use strict";
// The page as a figure inside another page, `?figure`: the slider, the heads and the five steps. It says how high it is.

if (location.search === "?figure") {
  document.documentElement.classList.add("figure");
  const say = () => parent.postMessage({ height: document.body.getBoundingClientRect().height }, "*");
  new ResizeObserver(say).observe(document.body);
}
