#!/usr/bin/env bash
# safetensors 0.8.0: `safetensors.numpy` stores a transposed array as its memory lies, and reads back other values.
#
# Versions: safetensors 0.8.0 and 0.7.0, numpy 2.4.6; Python 3.11.
# One would expect: `load_file` returns what `save_file` was given, or, as `safetensors.torch` does, `save_file` refuses
# what is not contiguous.
# Seen: of `kernel.T` the file has the right shape and the values of `kernel`, in its order, with 0.8.0, for `save` and
# `save_file`, in float32 and float16. So has an array that keeps its order: `kernel.T.astype(np.float16)`,
# `kernel.T + 0`. `np.ascontiguousarray` is right, and so is `np.array(kernel.T, order="C")`; `np.array(kernel.T)` is not.
# With 0.7.0 all of them are right. Upstream: safetensors issue 825, open.
# Where it is met: kernels of Flax are (in, out), PyTorch's (out, in); a conversion transposes every one of them. A square
# kernel shows no other shape anywhere, and a network of such kernels runs.
# Output: for 0.8.0 "transposed, cast to half, plus zero, copied: the array before", "contiguous, order C: right"; for
# 0.7.0 "right" for all.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
for version in 0.8.0 0.7.0; do
  "$folder/venv/bin/pip" install -q "safetensors==$version" numpy==2.4.6 2>/dev/null
  echo "safetensors $version"
  "$folder/venv/bin/python" - "$version" "$folder/file.safetensors" <<'PYTHON'
import sys

import numpy as np
from safetensors.numpy import load, load_file, save, save_file

version, path = sys.argv[1:]
kernel = np.arange(6, dtype=np.float32).reshape(2, 3)


def seen(array):
    save_file({"kernel": array}, path)
    read = [load_file(path)["kernel"], load(save({"kernel": array}))["kernel"]]
    before = np.asarray(array.T).reshape(array.shape)
    for name, known in (("right", array), ("the array before", before)):
        if all(each.shape == array.shape and (each == known).all() for each in read):
            return name
    return "something else"


result = {
    "transposed": seen(kernel.T),
    "cast to half": seen(kernel.T.astype(np.float16)),
    "plus zero": seen(kernel.T + 0),
    "copied": seen(np.array(kernel.T)),
    "contiguous": seen(np.ascontiguousarray(kernel.T)),
    "order C": seen(np.array(kernel.T, order="C")),
}
for name, what in result.items():
    print(f"{name}: {what}")
wrong = ["the array before"] * 4 + ["right"] * 2
sys.exit(list(result.values()) != (wrong if version == "0.8.0" else ["right"] * 6))
PYTHON
done
