"""Builds the page of a run: collects the data, the pictures and the network, and renders them."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from attn_cnn_jax.data.stored import AnyDataset
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.page.collect import page_data, picture_entries
from attn_cnn_jax.page.network import MOST_PARAMETERS, network_data, reason_not_to_compute
from attn_cnn_jax.page.pictures import Picture, from_dataset
from attn_cnn_jax.page.render import as_script_text, render
from attn_cnn_jax.runs.run import Run

MEGABYTES = 5.0
TEST_PICTURES = 100  # whose accuracy the page counts


class Page(NamedTuple):
    """A page as text, with the number of its pictures, and why it does not run the network, None where it does."""

    html: str
    pictures: int
    reason: str | None


def build(
    run: Run,
    pictures: list[Picture],
    dataset: AnyDataset | None,
    size: tuple[int, int],
    *,
    title: str,
    workdir: Path | None = None,
    megabytes: float = MEGABYTES,
    most_parameters: int = MOST_PARAMETERS,
) -> Page:
    """Returns the page of a run.

    Args:
      run: the run.
      pictures: to choose from in the page.
      dataset: names the classes, and has test pictures whose accuracy the page counts; None where it is not there.
      size: (H, W) of the pictures, in pixels.
      title: the page's title, plain text.
      workdir: the run directory, whose recorded positions the page plays; None for none.
      megabytes: largest size of the page without weights; pictures that do not fit are left out.
      most_parameters: largest network that runs in the page.

    Raises:
      UserError: if the run has nothing to show, or too much.
    """
    data = page_data(run, size, title=title, workdir=workdir)
    if run.model.depends_on_content and not pictures:
        raise UserError("this network's attention depends on content: give it pictures, --images 1 or more")
    rows, columns = data["grid"]
    class_names = dataset.class_names if dataset else run.class_names
    reason = reason_not_to_compute(run, (rows, columns), most_parameters)
    entries = picture_entries(run, pictures, class_names, with_content=reason is not None)
    data["pictures"] = those_that_fit(data, entries, megabytes)
    if reason is None:
        test = from_dataset(dataset, min(TEST_PICTURES, len(dataset.test.labels)), size) if dataset else []
        data["network"] = network_data(run, (rows, columns), class_names, test)
    return Page(render(data), len(data["pictures"]), reason)


def those_that_fit(data: dict, entries: Iterator[dict], megabytes: float) -> list[dict]:
    """Returns the first pictures with which the page stays below a size; UserError if not even one does."""
    room, chosen = megabytes * 1e6 - len(render(data)), []
    for entry in entries:
        room -= len(as_script_text(entry))
        if room < 0 and not chosen:
            raise UserError(
                f"a page with one picture has {megabytes - room / 1e6:.1f} MB: choose --megabytes above that"
            )
        if room < 0:
            break
        chosen.append(entry)
    return chosen
