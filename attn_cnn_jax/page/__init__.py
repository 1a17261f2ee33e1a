"""One self-contained HTML page that shows what every head of a run attends to, and runs the network.

`build.py` makes the page: `collect.py` says what it knows, `network.py` holds the weights, `render.py` puts both and
the files of `web/` into one HTML file, `inline.py` shows it in a notebook. Scores of positions are computed in the
browser from their parameters (`Encoding.page_parameters`), scores of content from the maps of queries and keys
(`Encoding.page_content`). For networks that are too large to run there, scores of content are stored for every picture
as quantised query and key factors (`content.py`).

In `web/`: `numbers.js`, `maps.js` and `network.js` are pure functions, the mathematics; `worker.js` runs them beside
the page, `compute.js` asks it. `view.js` holds what is chosen, `changes.js` what is changed of the network, `show.js`,
`panels.js`, `overlays.js` and `drawing.js` draw, `page.js`, `own.js` and `play.js` listen to the visitor; `resize.js`
fits a visitor's picture.
"""
