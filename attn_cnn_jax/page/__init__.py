"""One self-contained HTML page that shows what every head of a run attends to.

`collect.py` says what the page knows, `render.py` puts it and the files of `web/` into one HTML file. Scores of
positions are computed in the browser from their parameters (`positions.py`); scores of content are stored for
every picture as quantised query and key factors (`content.py`).
"""
