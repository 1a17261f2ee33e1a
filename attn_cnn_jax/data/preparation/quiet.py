"""Keeps tensorflow-datasets from printing."""

import contextlib
import io
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def quiet(progress: bool = False) -> Iterator[None]:
    """Keeps tfds from printing "Downloading" for local data, drawing bars, and recommending OpenCV."""
    import tensorflow_datasets as tfds

    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)
    if not progress:
        tfds.disable_progress_bar()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        tfds.enable_progress_bar()
        log.setLevel(level)
