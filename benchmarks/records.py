"""Records of training runs that the documentation shows: what is kept of a run, and tables of it inside pages.

A kept run is a folder with `config.json`, the records of `metrics.jsonl`, and `about.json`, which names its data and,
from version 0.4 on, the machines that trained it.
"""

import argparse
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from ml_collections import ConfigDict
from PIL import Image

from attn_cnn_jax import output
from attn_cnn_jax.analysis.figures import style
from attn_cnn_jax.cli.arguments import integers
from attn_cnn_jax.files import write_atomically
from attn_cnn_jax.runs.environment import describe, read_environments
from attn_cnn_jax.runs.metrics import read_metrics
from attn_cnn_jax.training import loop

ROOT = Path(__file__).parents[1]
RESULTS, DOCS = ROOT / "results", ROOT / "docs"
DATA = "CIFAR-10 (JPEG copy)"  # the set of most runs that the documentation shows
COLOURS = 128  # of a figure's palette: a third of the bytes, and no difference to the eye


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Options of a module that either trains, `--out`, or shows what was kept, `--show`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", metavar="DIR", default="", help="where CIFAR-10 is prepared")
    parser.add_argument("--out", type=Path, metavar="OUT", help="of run directories")
    parser.add_argument("--seeds", type=integers, default=[0, 1, 2], metavar="N-N", help="0-2")
    parser.add_argument("--show", type=Path, metavar="DIR", help="print what was kept there")
    parser.add_argument("--write", action="store_true", help="put it into the documentation")
    return parser


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The options given: one of `--out` and `--show`."""
    options = parser.parse_args(argv)
    if bool(options.show) == bool(options.out):
        parser.error("give --out=OUT, or --show=DIR")
    return options


def read_config(run: Path) -> dict[str, Any]:
    """The configuration of a run directory or a kept run, as plain values."""
    return json.loads((run / "config.json").read_text(encoding="utf-8"))


def write(
    place: Path,
    config: Mapping[str, Any],
    records: Sequence[dict],
    data: str = DATA,
    environments: Sequence[dict] = (),
) -> None:
    """Writes configuration, records and machines of a run; the folder where this machine has its data is left out."""
    config = {**config, "dataset": {**config["dataset"], "data_dir": ""}}
    place.mkdir(parents=True, exist_ok=True)
    write_atomically(place / "config.json", json.dumps(config, indent=2, sort_keys=True) + "\n")
    write_atomically(place / "metrics.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    write_atomically(place / "about.json", json.dumps({"data": data, "environment": list(environments)}) + "\n")


def write_trainings(file: Path, trainings: Sequence[Mapping[str, Any]]) -> None:
    """Writes small trainings, a line each, and the machine that they were trained on; creates the folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(training) for training in trainings)
    write_atomically(file, f'{{"machine": {json.dumps(describe())}, "trainings": [\n{lines}\n]}}\n')


def keep(run: Path, place: Path) -> None:
    """Copies configuration and metrics of a run on CIFAR-10."""
    write(place, read_config(run), read_metrics(run / "metrics.jsonl"), environments=read_environments(run))


def train(out: Path, place: Path, config: ConfigDict) -> None:
    """Trains or resumes a run on CIFAR-10 in `out / place`, and keeps it in `out / "kept" / place`."""
    loop.run(config, out / place)
    keep(out / place, out / "kept" / place)


def kept_runs(folder: Path) -> list[Path]:
    """The runs of all seeds that a folder keeps."""
    return sorted(folder.glob("seed_*"))


def accuracies(run: Path, split: str = "test") -> list[float]:
    """The accuracies (%) of a run in the order in which they were recorded."""
    return [100 * each["accuracy"] for each in read_metrics(run / "metrics.jsonl") if each["split"] == split]


def minutes(records: Sequence[dict]) -> float:
    """How long the steps of a run on CIFAR-10 took, from the rates that its records have."""
    train = [record for record in records if record["split"] == "train"]
    images = 50_000 * train[-1]["epoch"]
    return images / statistics.median(record["images_per_second"] for record in train) / 60


def with_deviation(values: Sequence[float]) -> str:
    """Mean and standard deviation, to a tenth."""
    return output.with_deviation(values, "{:.1f}")


def markdown(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *([row.get(column, "") for column in columns] for row in rows)]
    return "".join(f"| {' | '.join(map(str, cells))} |\n" for cells in lines)


def marked(name: str) -> re.Pattern:
    """The pattern of what is between the markers `<!-- name -->` and `<!-- end of name -->`."""
    return re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end of {name} -->)", re.DOTALL)


def put(page: Path, name: str, text: str) -> None:
    """Puts a text into a page, between its markers."""
    write_atomically(page, marked(name).sub(lambda _: text, page.read_text(encoding="utf-8")))


def show(text: str, page: Path, name: str, *, write: bool) -> None:
    """Prints a text; puts it into a page, too, where that is asked for."""
    print(text, end="")
    if write:
        put(page, name, text)


def put_figure(figure: Figure, target: Path) -> None:
    """Draws a figure of the documentation."""
    style.save(figure, target.parent, target.stem)
    target.with_suffix(".svg").unlink()
    reduce_colours(target, target)


def reduce_colours(drawn: Path, target: Path) -> None:
    """Copies an image with a palette of few colours."""
    Image.open(drawn).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(target, optimize=True)
    print(target)
