#!/usr/bin/env bash
# tfds: record i is not example i of the source, and a slice such as "train[:25%]" is not its first quarter.
#
# Versions: tensorflow-datasets 4.9.10, array_record 0.8.6, numpy 2.4.6; Python 3.11, no TensorFlow.
# One would expect: without shuffling, reading gives the examples as the builder generated them; slices are cut from that.
# Seen: whoever prepares a set writes its records in the order of a hash of each key, salted with the name of the split.
# Twelve numbers that are generated as 0 to 11 are read in another order from "train", the same every time, and from a
# split "test" that generates the same ones in a third; "train[:25%]" has numbers from the whole range. Only
# `disable_shuffling=True` in the builder's info keeps the order, and CIFAR's builders do not set it.
# Where it is met: CIFAR's scores, corrected or noisy labels by index, as published for its archive or torchvision, paired
# with tfds' records by position: no error, wrong images. Held-out slices of two libraries are different images.
# Output: "train in order: no", "test as train: no", "first quarter of train: no", "the same again: yes",
# "in order with disable_shuffling: yes".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tensorflow-datasets==4.9.10 array_record==0.8.6 numpy==2.4.6 importlib_resources==6.5.2 \
  2>/dev/null
mkdir "$folder/numbers_in_order"
touch "$folder/numbers_in_order/__init__.py"
cat >"$folder/numbers_in_order/numbers_in_order_dataset_builder.py" <<'PYTHON'
import numpy as np
import tensorflow_datasets as tfds


class Builder(tfds.core.GeneratorBasedBuilder):
    """The numbers from 0 to 11."""

    VERSION = tfds.core.Version("1.0.0")
    in_order = False

    def _info(self):
        features = tfds.features.FeaturesDict({"number": np.int64})
        return self.dataset_info_from_configs(features=features, disable_shuffling=self.in_order)

    def _split_generators(self, dl_manager):
        return {name: self._generate_examples() for name in ("train", "test")}

    def _generate_examples(self):
        for number in range(12):
            yield number, {"number": number}
PYTHON
cd "$folder"
venv/bin/python - 2>/dev/null <<'PYTHON'
import contextlib
import sys
import tempfile

from numbers_in_order.numbers_in_order_dataset_builder import Builder


def read(split, in_order=False):
    kind = type("Builder", (Builder,), {"in_order": in_order, "__module__": Builder.__module__}, skip_registration=True)
    builder = kind(data_dir=tempfile.mkdtemp(dir="."), file_format="array_record")
    with contextlib.redirect_stdout(sys.stderr):
        builder.download_and_prepare()
    return [int(record["number"]) for record in builder.as_data_source(split)]


train = read("train")
seen = {
    "train in order": train == list(range(12)),
    "test as train": read("test") == train,
    "first quarter of train": sorted(read("train[:25%]")) == [0, 1, 2],
    "the same again": read("train") == train,
    "in order with disable_shuffling": read("train", in_order=True) == list(range(12)),
}
for what, so in seen.items():
    print(f"{what}: {'yes' if so else 'no'}")
sys.exit(list(seen.values()) != [False, False, False, True, True])
PYTHON
