"use strict";
// Plays the course of training: the slider moves by itself, and the heads' centres move on the picture.

const MILLISECONDS_PER_EPOCH = 120;
const MILLISECONDS_WITH_REDUCED_MOTION = 700; // a slide show: a visitor asked for it, but not for fast motion

let playing = null; // the timer

function setPlaying(isOn) {
  clearInterval(playing);
  playing = null;
  $("play").setAttribute("aria-pressed", isOn);
  $("play").textContent = isOn ? "Pause" : "Play";
  if (!isOn) return;
  const reduced = matchMedia("(prefers-reduced-motion: reduce)").matches;
  choose({ epoch: atEnd() ? 0 : view.epoch });
  playing = setInterval(nextEpoch, reduced ? MILLISECONDS_WITH_REDUCED_MOTION : MILLISECONDS_PER_EPOCH);
}

function nextEpoch() {
  choose({ epoch: Math.min(view.epoch + 1, lastEpoch) });
  if (atEnd()) setPlaying(false);
}

function listenToPlay() {
  $("play").addEventListener("click", () => setPlaying(playing === null));
  $("epoch").addEventListener("pointerdown", () => setPlaying(false));
}
