"use strict";
// What moves by itself: training, in which the heads' centres move on the picture.

const wantsNoMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** Something that is done every so many milliseconds between `start()` and `stop()`. */
function animation(milliseconds, tick) {
  const stop = () => clearInterval(made.timer);
  const made = { stop, start: (each = milliseconds) => { stop(); made.timer = setInterval(tick, each); } };
  return made;
}

const training = animation(120, () => {
  choose({ epoch: Math.min(view.epoch + 1, lastEpoch) });
  if (atEnd()) setPlaying(false);
});

function setPlaying(isOn) {
  training.stop();
  $("play").setAttribute("aria-pressed", isOn);
  $("play").textContent = isOn ? "Pause" : "Play";
  if (!isOn) return;
  choose({ epoch: atEnd() ? 0 : view.epoch });
  training.start(wantsNoMotion() ? 700 : 120); // a slide show for who asked for no fast motion
}

function listenToPlay() {
  $("play").addEventListener("click", () => setPlaying($("play").textContent === "Play"));
  $("epoch").addEventListener("pointerdown", () => setPlaying(false));
}
