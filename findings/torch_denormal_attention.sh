#!/usr/bin/env bash
# PyTorch on Intel CPUs: averages by local attention take four times as long or more, as far keys have denormal probabilities.
#
# Versions: torch 2.13.0 on the CPU; Python 3.11; an Intel Xeon with AVX-512. Processors that compute denormals at full speed show
# nothing of it: on an AMD EPYC with AVX-512 such a product takes 1.2 times as long, and this script ends with 1.
# One would expect: a product takes as long as its shape says, whatever the numbers are; and `torch.set_flush_denormal(True)`, if one
# knows of it, to help wherever it is called.
# Seen: attention of a Gaussian head over 16x16 patches, softmax of -d^2/2, has 5% of its probabilities between 0 and 1.2e-38, and its
# product with 4,000 columns of values takes four to nine times as long as with these set to zero; with a width for which none is that
# small it takes as long. `torch.set_flush_denormal(True)` before the first product mends it; after a product on several threads
# it does not, as only the calling thread then flushes. XLA's programs on CPUs flush by themselves.
# Where it is met: ALiBi, Gaussian or learned relative positions with sharp local heads, and any comparison of PyTorch with JAX on
# a CPU of which such heads are part.
# Output: "wide heads: 1.0 times as long", "local heads, 5% denormal: 5.0 times as long", "flushed before the first product: 1.1 times as
# long", "flushed after one: 4.8 times as long" (with two threads or more).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q numpy==2.4.6 2>/dev/null
"$folder/venv/bin/pip" install -q torch==2.13.0 --extra-index-url https://download.pytorch.org/whl/cpu 2>/dev/null
cat >"$folder/product.py" <<'PYTHON'
import statistics
import sys
import time

import torch

alpha, flush = float(sys.argv[1]), sys.argv[2]
if flush == "before":
    torch.set_flush_denormal(True)
rows = torch.arange(16.0)
squares = (rows[:, None] - rows) ** 2
distances = (squares[:, None, :, None] + squares[None, :, None, :]).reshape(256, 256)
attention = torch.softmax(-alpha / 2 * distances, dim=-1)
values = torch.randn(256, 4000)
clean = attention.where(attention >= torch.finfo(torch.float32).tiny, 0)
if flush == "after":
    attention @ values
    torch.set_flush_denormal(True)


def seconds(p):
    """Median of eleven products, after one."""
    taken = []
    for _ in range(12):
        started = time.perf_counter()
        p @ values
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[1:])


print(seconds(attention) / seconds(clean))
PYTHON
product() { "$folder/venv/bin/python" "$folder/product.py" "$@"; }
wide=$(product 0.1 never)
local_heads=$(product 1.0 never)
before=$(product 1.0 before)
after=$(product 1.0 after)
printf 'wide heads: %.1f times as long\n' "$wide"
printf 'local heads, 5%% denormal: %.1f times as long\n' "$local_heads"
printf 'flushed before the first product: %.1f times as long\n' "$before"
printf 'flushed after one: %.1f times as long\n' "$after"
"$folder/venv/bin/python" -c '
import sys
import torch

wide, local_heads, before, after = map(float, sys.argv[1:])
slow_after = after > 2 or torch.get_num_threads() == 1
sys.exit(not (wide < 2 and local_heads > 3 and before < 2 and slow_after))
' "$wide" "$local_heads" "$before" "$after"
