#!/usr/bin/env bash
# Orbax: `CheckpointManager(best_fn=...)` takes NaN for the best metric there was, and removes the checkpoints before it.
#
# Versions: orbax-checkpoint 0.12.8, jax and jaxlib 0.10.2, flax not needed; Python 3.11.
# One would expect: a checkpoint whose loss is NaN is the worst, or is refused; `max_to_keep=1` keeps the best other one.
# Seen: metrics are sorted as they are, and NaN is neither below nor above a number: the order is that of the steps
# around it. Where a run diverges, NaN comes last and counts as best: of losses 0.5, NaN only the second is kept, and the
# good network is gone. A NaN in the middle hides what came before it: of 1.0, 0.5, NaN, 0.7, 0.4 the two kept are 0.7
# and 0.4. So it is with `best_mode="max"`. `best_step()` names NaN as long as it is there.
# Where it is met: runs that keep their best checkpoint by validation loss, and meet the one step after which it is NaN.
# Output: "0.5, NaN: kept NaN", "best_step: NaN", "with max: kept NaN", "NaN in the middle: kept 0.7 0.4",
# "the same without NaN: kept 0.5 0.4".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q orbax-checkpoint==0.12.8 jax==0.10.2 jaxlib==0.10.2 2>/dev/null
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - "$folder" <<'PYTHON' 2>/dev/null
import pathlib
import sys

import numpy as np
import orbax.checkpoint as ocp

nan, root = float("nan"), pathlib.Path(sys.argv[1])


def kept(name, metrics, mode="min", most=1):
    """The metrics of the checkpoints that are left, and of the best."""
    options = ocp.CheckpointManagerOptions(best_fn=lambda each: each["loss"], best_mode=mode, max_to_keep=most)
    with ocp.CheckpointManager(root / name, options=options) as manager:
        for step, metric in enumerate(metrics):
            manager.save(step, args=ocp.args.StandardSave({"x": np.zeros(1)}), metrics={"loss": metric})
            manager.wait_until_finished()
        return [metrics[step] for step in manager.all_steps()], metrics[manager.best_step()]


def words(*numbers):
    return " ".join("NaN" if number != number else str(number) for number in numbers)


left, best = kept("a", [0.5, nan])
seen = {
    "0.5, NaN": f"kept {words(*left)}",
    "best_step": words(best),
    "with max": f"kept {words(*kept('b', [0.5, nan], mode='max')[0])}",
    "NaN in the middle": f"kept {words(*kept('c', [1.0, 0.5, nan, 0.7, 0.4], most=2)[0])}",
    "the same without NaN": f"kept {words(*kept('d', [1.0, 0.5, 0.9, 0.7, 0.4], most=2)[0])}",
}
for name, what in seen.items():
    print(f"{name}: {what}")
sys.exit(list(seen.values()) != ["kept NaN", "NaN", "kept NaN", "kept 0.7 0.4", "kept 0.5 0.4"])
PYTHON
