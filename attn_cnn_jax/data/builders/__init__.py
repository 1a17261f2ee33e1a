"""The data sets by name: what is known of each without reading it, and where its tfds builder stands.

A new data set is one file with a builder (see `digits`) and one line in SPECS. A builder is imported when it is first
needed, because tensorflow-datasets takes long to import and most commands do without.
"""

import pkgutil
from dataclasses import dataclass


@dataclass(frozen=True)
class Spec:
    """What is known of a data set without reading it.

    Attributes:
      name: by which configurations and commands call it; also the builder's name.
      image_shape: (H, W, C), rows and columns in pixels.
      num_classes: labels are 0 .. num_classes - 1.
      train_examples: training pictures of the official data set.
      test_examples: test pictures of the official data set.
      mean: C numbers, of the training pictures scaled to [0, 1].
      std: C numbers, standard deviations of the same.
      builder: `module:class` of the tfds builder.
      has_archive: whether it is made from an archive, downloaded or given; otherwise from an installed package.
    """

    name: str
    image_shape: tuple[int, int, int]
    num_classes: int
    train_examples: int
    test_examples: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    builder: str
    has_archive: bool = False


HERE = __name__
CIFAR10_STATISTICS = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
CIFAR100_STATISTICS = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
SPECS = {
    spec.name: spec
    for spec in (
        Spec("cifar10", (32, 32, 3), 10, 50_000, 10_000, *CIFAR10_STATISTICS, f"{HERE}.cifar:Cifar10", True),
        Spec("cifar100", (32, 32, 3), 100, 50_000, 10_000, *CIFAR100_STATISTICS, f"{HERE}.cifar:Cifar100", True),
        Spec("digits", (8, 8, 1), 10, 1_442, 355, (0.3052,), (0.3760,), f"{HERE}.digits:Digits"),
    )
}


def builder_class(name: str) -> type:
    """Returns the tfds builder class of a data set; its features are `id`, `image` and `label` at least.

    Args:
      name: one of SPECS.
    """
    return pkgutil.resolve_name(SPECS[name].builder)
