"""The data sets: what is known of each, and how each is made and found again.

A built-in data set is one file with a tfds builder (see `digits`) and one entry in SPECS. The user's own data (`own`)
is described by `config.dataset`. A builder is imported when it is first needed, because tensorflow-datasets takes long
to import and most commands do without.
"""

import pkgutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from attn_cnn_jax.errors import UserError


@dataclass(frozen=True)
class Spec:
    """What networks and training need to know of a data set.

    Attributes:
      name: by which configurations and commands call it.
      image_shape: (H, W, C), rows and columns in pixels.
      num_classes: labels are 0 .. num_classes - 1.
      mean: C numbers, of the training pictures scaled to [0, 1].
      std: C numbers, standard deviations of the same.
      class_names: by label; () where they are known only from the prepared data.
      has_validation: whether it has a validation split of its own.
      train_examples: training pictures of the official data set; 0 where there is none.
      test_examples: test pictures, likewise.
      builder: `module:class` of the tfds builder; "" for the user's own data.
      has_archive: whether it is made from an archive, downloaded or given.
    """

    name: str
    image_shape: tuple[int, int, int]
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...] = ()
    has_validation: bool = False
    train_examples: int = 0
    test_examples: int = 0
    builder: str = ""
    has_archive: bool = False


HERE = __name__
CIFAR10_STATISTICS = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
CIFAR100_STATISTICS = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SPECS = {
    spec.name: spec
    for spec in (
        Spec(
            *("cifar10", (32, 32, 3), 10, *CIFAR10_STATISTICS, CIFAR10_NAMES),
            train_examples=50_000,
            test_examples=10_000,
            builder=f"{HERE}.cifar:Cifar10",
            has_archive=True,
        ),
        Spec(
            *("cifar100", (32, 32, 3), 100, *CIFAR100_STATISTICS),
            train_examples=50_000,
            test_examples=10_000,
            builder=f"{HERE}.cifar:Cifar100",
            has_archive=True,
        ),
        Spec(
            *("digits", (8, 8, 1), 10, (0.3052,), (0.3760,), tuple("0123456789")),
            train_examples=1_442,
            test_examples=355,
            builder=f"{HERE}.digits:Digits",
        ),
    )
}
OWN = ("folder", "npz")  # names of the user's own data, with config.dataset.path


def is_own(name: str) -> bool:
    """Returns whether a name stands for the user's own pictures or a set of tfds; all about those is in the data."""
    return name in OWN or name.startswith("tfds:")


def builder_class(name: str) -> type:
    """Returns the tfds builder class of a data set; its features are `id`, `image` and `label` at least.

    Args:
      name: one of SPECS.
    """
    return pkgutil.resolve_name(SPECS[name].builder)


class Recipe:
    """How a data set is made, found again and read; `BuiltIn` or `own.Own`.

    Attributes:
      name: as configurations call it.
      words: what it is called in messages.
      place: its folder in DATA_DIR, and its name for tfds.
      has_archive: whether it is made from an archive, downloaded or given.
    """

    name: str
    words: str
    place: str
    has_archive: bool = False

    @property
    def version(self) -> str:
        """The folder in `place` that holds it."""
        raise NotImplementedError

    def open(self, folder: Path) -> Any:
        """Returns a tfds builder that reads what was prepared in a folder; writes nothing."""
        raise NotImplementedError

    def spec(self, folder: Path) -> Spec:
        """Returns what is known of the data set that was prepared in a folder."""
        raise NotImplementedError

    def write(self, folder: Path, data_dir: Path, *, download: bool = True) -> None:
        """Writes the data set into a new folder, given where others lie; a built-in one is written by its builder."""
        raise NotImplementedError

    def is_current(self, folder: Path) -> bool:
        """Returns whether what was prepared in a folder is made from what there is now."""
        return True

    def describe(self, folder: Path) -> tuple[str, ...]:
        """Returns lines for the log that say how the data was prepared."""
        return ()

    def prepare_options(self) -> tuple[str, ...]:
        """Returns the words after `attn-cnn prepare` that prepare it."""
        return (self.name,)


class BuiltIn(Recipe):
    """A data set of SPECS: its builder generates it."""

    def __init__(self, name: str):
        """Args: name: one of SPECS."""
        self.name = self.words = self.place = name
        self.has_archive = SPECS[name].has_archive

    @property
    def version(self) -> str:
        return str(self.builder.VERSION)

    @property
    def builder(self) -> Any:
        """The class of its tfds builder."""
        return builder_class(self.name)

    def open(self, folder: Path) -> Any:
        return self.builder(data_dir=folder.parent.parent)

    def spec(self, folder: Path) -> Spec:
        return SPECS[self.name]


def recipe(name: str) -> Recipe:
    """Returns the recipe of a data set that is known by its name alone; UserError if there is none."""
    if name not in SPECS:
        raise UserError(f"There is no data set {name!r}.\nChoose one of {', '.join(SPECS)}.")
    return BuiltIn(name)


def recipe_of(dataset: ConfigDict) -> Recipe:
    """Returns the recipe of the data set that `config.dataset` describes."""
    name = dataset["name"]
    if not is_own(name):
        return recipe(name)
    from attn_cnn_jax.data.builders.own import Own

    size = dataset["image_size"]
    return Own(
        name,
        dataset["path"],
        image_size=(size, size) if isinstance(size, int) else tuple(size),
        test_fraction=dataset["test_fraction"],
        skip_unreadable=dataset["skip_unreadable"],
    )
