"""One self-contained HTML page that shows what every head of a run attends to, and runs the network.

`build.py` says what the page knows, `scores.py` what it computes attention scores from, `network.py` holds the weights,
`images.py` its images, `history.py` the course of training; `render.py` puts them and the files of `web/` into one
HTML file, `inline.py` shows it in a notebook.

In `web/`: `numbers.js`, `maps.js` and `network.js` are pure functions, the mathematics; `worker.js` runs them beside
the page, `compute.js` asks it. `view.js` holds what is chosen, `changes.js` what is changed of the network, `show.js`,
`panels.js`, `overlays.js` and `drawing.js` draw, `page.js`, `own.js` and `play.js` listen to the visitor.
"""
