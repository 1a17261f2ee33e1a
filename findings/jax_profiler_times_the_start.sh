#!/usr/bin/env bash
# jaxlib 0.10.2, CPU: JAX's profiler gives a matrix product the time that it took to start it in XLA's threads.
#
# Versions: jax and jaxlib 0.10.2, numpy 2.4.6; Python 3.11; x86-64 (AMD EPYC), two cores. The same with jaxlib 0.11.2
# and 0.12.0; not with 0.9.2.
# One would expect: the events of `jax.profiler` last as long as the operations, so that a program's add up to its time,
# and FLOPs over an event's duration are the speed of a product.
# Seen, with the fusions of YNNPACK off (`xla_cpu_experimental_ynn_fusion_type=""`, which avoids their wrong products):
# the event of a product of 2048x2048 ends after a twentieth of its time, which would be 4,000 GFLOP/s on a machine of
# 200; the threads that compute it leave no event. With NPROC=1, one thread, it lasts as long as the product.
# Where it is met: any profile of a network on a CPU that is read for where its time goes: products seem to take a
# fraction of a step and what is between them most of it. Which share is missing differs from product to product.
# Output: "several threads: 5% of the time", or 6%, and "one thread: 100%".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 2>/dev/null
cat > "$folder/share.py" <<'PYTHON'
import glob
import sys
import tempfile
import time

import jax

x = jax.random.normal(jax.random.key(0), (2048, 2048))
product = jax.jit(lambda x: x @ x, compiler_options={"xla_cpu_experimental_ynn_fusion_type": ""})
product(x).block_until_ready()
with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
        start = time.perf_counter()
        for _ in range(9):
            product(x).block_until_ready()
        taken = time.perf_counter() - start
    (path,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
    data = jax.profiler.ProfileData.from_file(path)
    events = [event for plane in data.planes for line in plane.lines for event in line.events]
    seconds = sum(event.duration_ns for event in events if event.name.startswith("dot")) / 1e9
print(seconds / taken)
PYTHON
python="$folder/venv/bin/python"
several=$(JAX_PLATFORMS=cpu NPROC=2 "$python" "$folder/share.py")
one=$(JAX_PLATFORMS=cpu NPROC=1 "$python" "$folder/share.py")
"$python" -c "
print(f'several threads: {$several:.0%} of the time')
print(f'one thread: {$one:.0%}')
raise SystemExit(not ($several < 0.5 and 0.9 < $one < 1.1))"
