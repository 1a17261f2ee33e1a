"""Prepared data sets on disk: finds them and makes them, and a kill at any moment loses none.

A data set lies in DATA_DIR/NAME/VERSION, as tfds puts it. A new one is made in DATA_DIR/NAME/incomplete.new and moved
to its place when it is complete; meanwhile the one that it replaces waits in DATA_DIR/NAME/replaced.VERSION. A lock on
DATA_DIR/NAME/.lock lets one process at a time make or decode the data set.
"""

import contextlib
import io
import json
import logging
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from attn_cnn_jax.data.builders import SPECS, builder_class
from attn_cnn_jax.data.preparation.archives import Archive
from attn_cnn_jax.errors import UserError, command_line

PROBE_SECONDS = 6  # with all imports the answer comes within 15 s, even where a firewall drops every packet

CHOOSE_FOLDER = "Choose a folder by config.dataset.data_dir, --data-dir or TFDS_DATA_DIR."

DataDir = str | Path | None
Say = Callable[[str], object]


def folder(name: str, data_dir: DataDir = None) -> Path:
    """Returns the path DATA_DIR/NAME/VERSION; the default DATA_DIR is $TFDS_DATA_DIR or ~/tensorflow_datasets.

    Raises:
      UserError: the path begins with `~`, and the home folder is not known.
    """
    root = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    try:
        return Path(root).expanduser().absolute() / name / str(builder_class(name).VERSION)
    except RuntimeError as error:
        raise UserError(
            f"The data folder {root} is in a home folder that is not known (HOME is not set).\n{CHOOSE_FOLDER}"
        ) from error


def is_prepared(name: str, data_dir: DataDir = None) -> bool:
    """Returns whether the data set is there and complete."""
    return is_complete(folder(name, data_dir))


def is_complete(path: Path) -> bool:
    """Returns whether a folder holds a whole data set; tfds itself takes any folder of that name for one."""
    return all((path / file).is_file() for file in ("dataset_info.json", "features.json"))


def open_builder(name: str, data_dir: DataDir = None) -> Any:
    """Returns the tfds builder of a data set; writes nothing.

    Raises:
      UserError: the data set is there, but its description is damaged.
    """
    try:
        return builder_class(name)(data_dir=folder(name, data_dir).parent.parent)
    except UserError:
        raise
    except Exception as error:  # tfds and protobuf raise many types on damaged JSON
        raise damaged(name, data_dir, error) from error


def read_origin(path: Path) -> dict[str, Any]:
    """Returns what a prepared data set notes of the archive it was made from; {} where that is not known.

    Args:
      path: the data set's folder.
    """
    try:
        origin = json.loads((path / "archive.json").read_text())
    except (OSError, ValueError):
        return {}
    return origin if isinstance(origin, dict) else {}


def prepare(
    name: str,
    data_dir: DataDir = None,
    *,
    content: Archive | None = None,
    replace: bool = False,
    download: bool = True,
    say: Say = lambda line: None,
) -> None:
    """Makes the data set unless it is there already.

    Args:
      name: one of SPECS.
      data_dir: see `folder`.
      content: the archive to make it from; None downloads (digits: needs neither).
      replace: make it anew even if it is there; the old one goes when the new one is complete.
      download: False refuses to use the network.
      say: called with a line of text at each stage.

    Raises:
      UserError: it cannot be downloaded, cannot be written, or is there already, made from another archive.
    """
    final = folder(name, data_dir)
    from_network = SPECS[name].has_archive and content is None
    # In this order one of both is seen even while another process moves them.
    if from_network and (replace or not (is_complete(aside(final)) or is_complete(final))):
        check_network(name, data_dir, download)
    try:
        with locked(final, say):
            if replace or not is_complete(final):
                generate(name, final, content, say)
            elif content and read_origin(final).get("sha256") != content.sha256:
                raise UserError(
                    f"{final} is already prepared, from another archive.\n"
                    "Add --replace to put this one in its place, or choose another --data-dir."
                )
            else:
                say(f"{name} is already prepared in {final}")
    except OSError as error:
        raise UserError(
            f"Cannot write the data set {name} to {final}: {error.strerror or error}.\n"
            f"Make room there, or choose another. {CHOOSE_FOLDER}"
        ) from error


@contextlib.contextmanager
def locked(final: Path, say: Say) -> Iterator[None]:
    """Holds the lock of the data set in `final`, with what killed processes left put right.

    Raises:
      OSError: the folder cannot be written to.
    """
    parent = final.parent
    parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(parent / ".lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        say(f"Another process is preparing or reading {parent.name}; waiting for it.")
        lock.acquire()
    try:
        put_right(final)
        yield
    finally:
        lock.release()


def aside(final: Path) -> Path:
    """Returns where a data set waits while a new one takes its place."""
    return final.with_name(f"replaced.{final.name}")


def put_right(final: Path) -> None:
    """Brings back a data set that a killed process had put aside; removes half-made ones and half-done downloads."""
    if is_complete(final):
        shutil.rmtree(aside(final), ignore_errors=True)
    elif is_complete(aside(final)):
        shutil.rmtree(final, ignore_errors=True)
        aside(final).rename(final)
    downloads = final.parent.parent / "downloads" / final.parent.name
    for path in (*final.parent.glob("incomplete.*"), *downloads.glob("*.tmp.*")):
        shutil.rmtree(path)


def generate(name: str, final: Path, content: Archive | None, say: Say) -> None:
    """Lets tfds download if need be and write the ArrayRecord files, then moves them to `final`; see `prepare`."""
    import requests
    import tensorflow_datasets as tfds

    data_dir, made_in = final.parent.parent, final.with_name("incomplete.new")
    builder = builder_class(name)(data_dir=made_in)
    from_network = SPECS[name].has_archive and content is None
    if content is not None:
        builder.archive = content
    say(f"Downloading {builder.url}" if from_network else f"Writing {final}")
    config = tfds.download.DownloadConfig(force_checksums_validation=True, try_download_gcs=False)
    try:
        with quiet(progress=from_network and sys.stderr.isatty()):
            builder.download_and_prepare(
                file_format="array_record", download_dir=data_dir / "downloads", download_config=config
            )
        if final.exists():
            shutil.rmtree(aside(final), ignore_errors=True)  # `put_right` left nothing there that counts
            final.rename(aside(final))
        made_in.joinpath(name, final.name).rename(final)
    except (requests.RequestException, tfds.download.DownloadError) as error:
        raise missing(name, data_dir, f"the download failed: {error}") from error
    finally:
        put_right(final)


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


def check_network(name: str, data_dir: DataDir, download: bool) -> None:
    """Raises a UserError if the archive's host does not answer within seconds; tfds would try for minutes."""
    if not download:
        raise missing(name, data_dir, "downloading is switched off")
    url = open_builder(name, data_dir).url
    answers = []
    # A name server that never answers outlasts every time-out of `requests`; the thread is then left behind.
    probe = threading.Thread(target=lambda: answers.append(ask(url)), daemon=True)
    probe.start()
    probe.join(PROBE_SECONDS)
    failure = answers[0] if answers else f"no answer within {PROBE_SECONDS} s"
    if failure:
        raise missing(name, data_dir, f"{url}: {failure}")


def ask(url: str) -> str | None:
    """Returns None if the server answers, else why not; uses the proxies that tfds uses."""
    import requests

    try:
        requests.head(url, timeout=PROBE_SECONDS)
    except requests.RequestException as error:
        return type(error).__name__
    return None


def command(name: str, data_dir: DataDir, *options: str) -> str:
    """Returns the command line that prepares a data set, in backquotes."""
    place = ["--data-dir", data_dir] if data_dir else []
    return f"`{command_line('prepare', name, *options, *place)}`"


def damaged(name: str, data_dir: DataDir, reason: object) -> UserError:
    """Returns the error for a prepared data set that cannot be read back."""
    said = (" ".join(str(reason).split()) or type(reason).__name__)[:200]
    archive = " (add `--archive PATH` where there is no network)" if SPECS[name].has_archive else ""
    return UserError(
        f"The prepared data set {folder(name, data_dir)} is damaged: {said}.\n"
        f"Prepare it again: {command(name, data_dir, '--replace')}{archive}."
    )


def missing(name: str, data_dir: DataDir, reason: object) -> UserError:
    """Returns the error for a data set that is not there and cannot be downloaded."""
    said = " ".join(str(reason).split())[:300]
    return UserError(
        f"The data set {name} is not in {folder(name, data_dir)} and cannot be downloaded ({said}).\n"
        "Run again with network access, import the official archive with "
        f"{command(name, data_dir, '--archive', 'PATH')}, "
        "or train on the bundled digits with `--config=configs/digits.py`."
    )
