"""Prepared data sets on disk: finds them and makes them, and a kill at any moment loses none.

A data set lies in DATA_DIR/NAME/VERSION, as tfds puts it. A new one is made in DATA_DIR/NAME/incomplete.new and moved
to its place when it is complete; meanwhile the one that it replaces waits in DATA_DIR/NAME/replaced.VERSION. A lock on
DATA_DIR/NAME/.lock lets one process at a time make or decode the data set.
"""

import contextlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from attn_cnn_jax.data.builders import BuiltIn, Recipe
from attn_cnn_jax.data.preparation.archives import Archive
from attn_cnn_jax.data.preparation.network import failure_of
from attn_cnn_jax.data.preparation.quiet import quiet
from attn_cnn_jax.errors import UserError, command_line

CHOOSE_FOLDER = "Choose a folder by config.dataset.data_dir, --data-dir or TFDS_DATA_DIR."

DataDir = str | Path | None
Say = Callable[[str], object]


def folder(recipe: Recipe, data_dir: DataDir = None) -> Path:
    """Returns the path DATA_DIR/PLACE/VERSION; the default DATA_DIR is $TFDS_DATA_DIR or ~/tensorflow_datasets.

    Raises:
      UserError: the path begins with `~`, and the home folder is not known.
    """
    root = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    try:
        return Path(root).expanduser().absolute() / recipe.place / recipe.version
    except RuntimeError as error:
        raise UserError(
            f"The data folder {root} is in a home folder that is not known (HOME is not set).\n{CHOOSE_FOLDER}"
        ) from error


def is_prepared(recipe: Recipe, data_dir: DataDir = None) -> bool:
    """Returns whether the data set is there, complete, and made from what there is now."""
    return is_current(recipe, folder(recipe, data_dir))


def is_current(recipe: Recipe, path: Path) -> bool:
    """Returns whether a folder holds the whole data set, made from what there is now."""
    return is_complete(path) and recipe.is_current(path)


def is_complete(path: Path) -> bool:
    """Returns whether a folder holds a whole data set; tfds itself takes any folder of that name for one."""
    return all((path / file).is_file() for file in ("dataset_info.json", "features.json"))


def open_builder(recipe: Recipe, data_dir: DataDir = None) -> Any:
    """Returns the tfds builder of a data set; writes nothing.

    Raises:
      UserError: the data set is there, but its description is damaged, or only TensorFlow reads its files.
    """
    place = folder(recipe, data_dir)
    try:
        builder = recipe.open(place)
    except UserError:
        raise
    except Exception as error:  # tfds and protobuf raise many types on damaged JSON
        raise damaged(recipe, data_dir, error) from error
    another = f"Prepare another copy: {command(recipe, 'DIR')}, and set config.dataset.data_dir=DIR (or --data-dir DIR)"
    check_format(builder, f"The data set {recipe.words} lies in {place}", another)
    return builder


def check_format(builder: Any, where: str, remedy: str) -> None:
    """Raises UserError, which begins with `where` a data set lies, unless its files are read without TensorFlow."""
    found = getattr(builder.info.file_format, "value", builder.info.file_format)
    if found not in ("array_record", None):
        raise UserError(f"{where} as {found}, which only TensorFlow reads\n{remedy}")


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
    recipe: Recipe,
    data_dir: DataDir = None,
    *,
    content: Archive | None = None,
    replace: bool = False,
    download: bool = True,
    say: Say = lambda line: None,
) -> None:
    """Makes the data set unless it is there already.

    Args:
      recipe: of the data set.
      data_dir: see `folder`.
      content: the archive to make it from; None downloads where `recipe.has_archive`.
      replace: make it anew even if it is there; the old one goes when the new one is complete.
      download: False refuses to use the network.
      say: called with a line of text at each stage.

    Raises:
      UserError: it cannot be downloaded, cannot be written, or is there already, made from another archive.
    """
    final = folder(recipe, data_dir)
    from_network = recipe.has_archive and content is None
    # In this order one of both is seen even while another process moves them.
    if from_network and (replace or not (is_complete(aside(final)) or is_complete(final))):
        check_network(recipe, data_dir, download)
    try:
        with locked(final, say):
            if replace or not is_current(recipe, final):
                generate(recipe, final, content, say, download=download)
            else:
                say_prepared(recipe, data_dir, content, say)
    except (OSError, RuntimeError) as error:
        if (reason := unwritable(error)) is None:
            raise
        raise UserError(
            f"Cannot write the data set {recipe.words} to {final}: {reason}.\n"
            f"Make room there, or choose another. {CHOOSE_FOLDER}"
        ) from error


def say_prepared(recipe: Recipe, data_dir: DataDir, content: Archive | None, say: Say) -> None:
    """Says that a data set is there; UserError if it cannot be read, or was made from another archive."""
    final = folder(recipe, data_dir)
    open_builder(recipe, data_dir)
    if content and read_origin(final).get("sha256") != content.sha256:
        raise UserError(
            f"{final} is already prepared, from another archive.\n"
            "Add --replace to put this one in its place, or choose another --data-dir."
        )
    say(f"{recipe.words} is already prepared in {final}")


def unwritable(error: OSError | RuntimeError) -> str | None:
    """Returns why files cannot be written; None for an error about anything else.

    ArrayRecord's writer is a C++ library: `RuntimeError: ... write() failed: No space left on device; writing PATH`.
    """
    if isinstance(error, OSError):
        return error.strerror or str(error)
    found = re.search(r"\w+\(\) failed: ([^;]+); writing", str(error))
    return found[1] if found else None


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


def generate(recipe: Recipe, final: Path, content: Archive | None, say: Say, *, download: bool = True) -> None:
    """Writes the ArrayRecord files, after a download if need be, and moves them to `final`; see `prepare`."""
    made_in = final.with_name("incomplete.new")
    try:
        if isinstance(recipe, BuiltIn):
            download_and_write(recipe, made_in, final, content, say)
        else:
            say(f"Writing {final}")
            recipe.write(made_in / recipe.place / final.name, final.parent.parent, download=download)
        if final.exists():
            shutil.rmtree(aside(final), ignore_errors=True)  # `put_right` left nothing there that counts
            final.rename(aside(final))
        made_in.joinpath(recipe.place, final.name).rename(final)
    finally:
        put_right(final)


def download_and_write(recipe: BuiltIn, made_in: Path, final: Path, content: Archive | None, say: Say) -> None:
    """Lets tfds download if need be and write the files of a built-in data set below `made_in`."""
    import requests
    import tensorflow_datasets as tfds

    data_dir = final.parent.parent
    builder = recipe.builder(data_dir=made_in)
    from_network = recipe.has_archive and content is None
    if content is not None:
        builder.archive = content
    say(f"Downloading {builder.url}" if from_network else f"Writing {final}")
    config = tfds.download.DownloadConfig(force_checksums_validation=True, try_download_gcs=False)
    try:
        with quiet(progress=from_network and sys.stderr.isatty()):
            builder.download_and_prepare(
                file_format="array_record", download_dir=data_dir / "downloads", download_config=config
            )
    except (requests.RequestException, tfds.download.DownloadError) as error:
        raise missing(recipe, data_dir, f"the download failed: {error}") from error


def check_network(recipe: Recipe, data_dir: DataDir, download: bool) -> None:
    """Raises a UserError if the archive's host does not answer within seconds; tfds would try for minutes."""
    if not download:
        raise missing(recipe, data_dir, "downloading is switched off")
    assert isinstance(recipe, BuiltIn)  # no other has an archive
    # Of a data set to be: one that is there may be damaged.
    url = recipe.builder(data_dir=folder(recipe, data_dir).with_name("incomplete.new")).url
    if failure := failure_of(url):
        raise missing(recipe, data_dir, f"{url}: {failure}")


def command(recipe: Recipe, data_dir: DataDir, *options: str) -> str:
    """Returns the command line that prepares a data set, in backquotes."""
    place = ["--data-dir", data_dir] if data_dir else []
    return f"`{command_line('prepare', *recipe.prepare_options(), *options, *place)}`"


@contextlib.contextmanager
def reading(recipe: Recipe, data_dir: DataDir) -> Iterator[None]:
    """Turns what goes wrong while the files of a prepared data set are read into a UserError, see `damaged`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # Riegeli, protobuf, Pillow and tfds each raise their own on damaged files
        raise damaged(recipe, data_dir, error) from error


def damaged(recipe: Recipe, data_dir: DataDir, reason: object) -> UserError:
    """Returns the error for a prepared data set that cannot be read back."""
    said = (" ".join(str(reason).split()) or type(reason).__name__)[:200]
    archive = " (add `--archive PATH` where there is no network)" if recipe.has_archive else ""
    return UserError(
        f"The prepared data set {folder(recipe, data_dir)} is damaged: {said}.\n"
        f"Prepare it again: {command(recipe, data_dir, '--replace')}{archive}."
    )


def missing(recipe: Recipe, data_dir: DataDir, reason: object) -> UserError:
    """Returns the error for a data set that is not there and cannot be downloaded."""
    said = " ".join(str(reason).split())[:300]
    return UserError(
        f"The data set {recipe.words} is not in {folder(recipe, data_dir)} and cannot be downloaded ({said}).\n"
        f"Run again with network access, import the official archive with "
        f"{command(recipe, data_dir, '--archive', 'PATH')}, "
        "or train on the bundled digits with `--config=configs/digits.py`."
    )
