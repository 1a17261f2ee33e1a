"""One self-contained HTML page that shows what every head of a run attends to, and runs the network.

`build.py` says what the page knows, and puts it and the files of `web/` into one HTML file, or into a notebook;
`scores.py` says what it computes attention scores from, also over training, `network.py` holds the weights,
`images.py` its images.

In `web/worker/`: `numbers.js`, `maps.js`, `convolution.js`, `network.js` and `learning.js` are pure functions, the
maths; `worker.js` runs them beside the page. In `web/`: `compute.js` asks it. `view.js` holds what is chosen,
`address.js` writes it as a link, `changes.js` holds what is changed of the network. `show.js`, `panels.js`,
`drawing.js` and `figure.js` draw; `page.js`, `play.js`, `own.js` (files), `strokes.js` (drawings) and `open.js`
(exports) listen to the visitor; `steps.js` explains, `theorem.js` shows the theorem, `student.js` the training.
"""

MOST_PARAMETERS = 3_000_000  # of a network that runs in the page: 16 MB of text
