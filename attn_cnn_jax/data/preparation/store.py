"""Prepared data sets on disk: find them, make them, and leave nothing half-made.

A data set lies in DATA_DIR/NAME/VERSION, as tfds puts it. tfds writes to `incomplete.*` beside it and renames
that folder when all is there; a lock on DATA_DIR/NAME/.lock keeps two processes from doing the same work.
"""

import contextlib
import fcntl
import io
import logging
import os
import shutil
import sys
import threading
from pathlib import Path

from attn_cnn_jax.errors import UserError, command_line

_PROBE_SECONDS = 6  # with all imports the answer comes within 15 s, even where a firewall drops every packet
_DOWNLOAD_RETRIES = 3  # tfds's own 10 take more than three minutes


def builder_class(name):
    """Return the tfds builder class of "cifar10", "cifar100" or "digits"."""
    if name == "digits":
        from attn_cnn_jax.data.builders.digits import Digits

        return Digits
    from attn_cnn_jax.data.builders import cifar

    return {"cifar10": cifar.Cifar10, "cifar100": cifar.Cifar100}[name]


def folder(name, data_dir=None):
    """Return the path DATA_DIR/NAME/VERSION, by default in $TFDS_DATA_DIR or ~/tensorflow_datasets."""
    root = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return Path(root).expanduser().absolute() / name / str(builder_class(name).VERSION)


def is_prepared(name, data_dir=None):
    """Whether the folder is complete; tfds itself takes any folder of that name for it."""
    return all((folder(name, data_dir) / file).is_file() for file in ("dataset_info.json", "features.json"))


def open_builder(name, data_dir=None):
    """Return the tfds builder; writes nothing.

    Raises:
      UserError: the data set is there, but its description is damaged.
    """
    try:
        return builder_class(name)(data_dir=folder(name, data_dir).parent.parent)
    except Exception as error:  # tfds and protobuf raise whatever they like on damaged JSON
        raise damaged(name, data_dir, error) from error


def command(name, data_dir=None):
    """Return the command line that prepares a data set."""
    return command_line("prepare", name, *(["--data-dir", data_dir] if data_dir else []))


def damaged(name, data_dir, reason):
    """Return the UserError for a prepared data set that cannot be read back."""
    reason = (" ".join(str(reason).split()) or type(reason).__name__)[:200]
    how = f"`{command(name, data_dir)} --replace`"
    archive = "" if name == "digits" else " (with `--archive PATH` where there is no network)"
    return UserError(
        f"The prepared data set {folder(name, data_dir)} is damaged: {reason}.\nPrepare it again: {how}{archive}."
    )


def prepare(name, data_dir=None, *, content=None, replace=False, download=True, say=lambda line: None):
    """Make the data set unless it is there already.

    Args:
      name: "cifar10", "cifar100" or "digits".
      data_dir: see `folder`.
      content: an `archive.Archive` to make it from; None downloads (digits: needs neither).
      replace: make it anew even if it is there; the old one goes when the new one is complete.
      download: False refuses to use the network.
      say: called with a line of text at each stage.

    Raises:
      UserError: it cannot be downloaded, or not be written.
    """
    if content is None and name != "digits":
        _check_network(name, data_dir, download)
    final = folder(name, data_dir)
    try:
        with _lock(final.parent, say):
            if replace or not is_prepared(name, data_dir):  # else another process was faster
                with _replaced(final):
                    _generate(name, data_dir, content, say)
    except OSError as error:
        raise UserError(
            f"Cannot write the data set {name} to {final}: {error.strerror or error}.\n"
            "Make room there, or choose another folder, by config.dataset.data_dir, --data-dir or TFDS_DATA_DIR."
        ) from error


@contextlib.contextmanager
def _lock(parent, say):
    """Hold the data set's lock, with the remains of killed processes removed."""
    parent.mkdir(parents=True, exist_ok=True)
    with (parent / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Another process is preparing {parent.name}; waiting for it.")
            fcntl.flock(file, fcntl.LOCK_EX)
        _remove_remains(parent)
        try:
            yield
        finally:
            _remove_remains(parent)


def _remove_remains(parent):
    """Remove half-made folders and half-done downloads of one data set; its lock must be held."""
    downloads = parent.parent / "downloads" / parent.name
    for path in (*parent.glob("incomplete.*"), *downloads.glob("*.tmp.*")):
        shutil.rmtree(path)


@contextlib.contextmanager
def _replaced(final):
    """Put an existing folder out of the way, and back if the block fails."""
    aside = final.with_name(f"incomplete.replaced_{final.name}")
    if not final.exists():
        yield
        return
    final.rename(aside)
    try:
        yield
    except BaseException:
        shutil.rmtree(final, ignore_errors=True)
        aside.rename(final)
        raise


def _generate(name, data_dir, content, say):
    """Let tfds download if need be, and write the ArrayRecord files."""
    import requests
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download import downloader

    builder = open_builder(name, data_dir)
    if name != "digits":
        builder.content = content
    is_download = name != "digits" and content is None
    say(f"Downloading {builder.url}" if is_download else f"Writing {folder(name, data_dir)}")
    config = tfds.download.DownloadConfig(force_checksums_validation=True, try_download_gcs=False)
    retries, downloader.MAX_RETRIES = downloader.MAX_RETRIES, _DOWNLOAD_RETRIES
    try:
        with quiet(progress=is_download and sys.stderr.isatty()):
            builder.download_and_prepare(file_format="array_record", download_config=config)
    except (requests.RequestException, tfds.download.DownloadError) as error:
        raise _missing(name, data_dir, f"the download failed: {error}") from error
    finally:
        downloader.MAX_RETRIES = retries


@contextlib.contextmanager
def quiet(progress=False):
    """Keep tfds from printing "Downloading" for local data, drawing bars, and recommending OpenCV."""
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


def _check_network(name, data_dir, download):
    """Look before tfds calls: it would try for minutes."""
    if not download:
        raise _missing(name, data_dir, "downloading is switched off")
    url = open_builder(name, data_dir).url
    answers = []
    # A name server that never answers outlasts every time-out of `requests`: leave the thread behind, then.
    probe = threading.Thread(target=lambda: answers.append(_probe(url)), daemon=True)
    probe.start()
    probe.join(_PROBE_SECONDS)
    failure = answers[0] if answers else f"no answer within {_PROBE_SECONDS} s"
    if failure:
        raise _missing(name, data_dir, f"{url}: {failure}")


def _probe(url):
    """Return None if the server answers, else why not; proxies are heeded as tfds heeds them."""
    import requests

    try:
        requests.head(url, timeout=_PROBE_SECONDS)
    except requests.RequestException as error:
        return type(error).__name__
    return None


def _missing(name, data_dir, reason):
    """Return the two lines about data that is not there."""
    reason = " ".join(str(reason).split())[:300]
    return UserError(
        f"The data set {name} is not in {folder(name, data_dir)} and cannot be downloaded ({reason}).\n"
        f"Three ways on: run again with network access; import the official archive with "
        f"`{command(name, data_dir)} --archive PATH`; or train on the embedded digits with "
        "`--config=configs/digits.py`."
    )
