#!/usr/bin/env bash
# JAX: `jax.make_array_from_process_local_data` passes a transfer guard in one process and is refused by it in several.
#
# Versions: jax and jaxlib 0.10.2, numpy 2.4.6, on the CPU; Python 3.11.
# One would expect: a guard forbids stray copies and allows those that a program asks for; this function is the documented
# way to ask for a global array, so that what one process may do under `jax.transfer_guard("disallow")` two may, too.
# Seen: in one process the same call is an explicit transfer. With two it takes another way inside of JAX, which counts as an
# implicit one, and raises "Disallowed host-to-device transfer". `jax.device_put` to the devices of a process and
# `jax.make_array_from_single_device_arrays` pass in both.
# Where it is met: a training loop that is guarded and tested in one process, with any number of devices, ends in its first
# step on several hosts. So did ours for a day.
# Output: "allowed" for one process and for both ways by single devices, "2 processes: refused".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 2>/dev/null
cat >"$folder/place.py" <<'PYTHON'
import os
import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

count, number, port = map(int, sys.argv[1:])
if count > 1:
    jax.distributed.initialize(f"127.0.0.1:{port}", count, number)
whole = NamedSharding(Mesh(jax.devices(), "data"), PartitionSpec())
value = np.arange(3, dtype=np.int32)


def by_single_devices():
    copies = [jax.device_put(value, device) for device in jax.local_devices()]
    return jax.make_array_from_single_device_arrays(value.shape, whole, copies)


ways = {"": lambda: jax.make_array_from_process_local_data(whole, value), ", by single devices": by_single_devices}
for name, place in ways.items():
    try:
        with jax.transfer_guard("disallow"):
            place()
        found = "allowed"
    except Exception as error:
        found = "refused" if "Disallowed host-to-device transfer" in str(error) else repr(error)
    if number == 0:
        print(f"{count} process{'es' * (count > 1)}{name}: {found}", flush=True)
os._exit(0)  # without waiting for the other
PYTHON
port=$("$folder/venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export JAX_PLATFORMS=cpu
python="$folder/venv/bin/python"
{
  "$python" "$folder/place.py" 1 0 "$port"
  "$python" "$folder/place.py" 2 1 "$port" &
  "$python" "$folder/place.py" 2 0 "$port"
  wait
} 2>/dev/null | tee "$folder/output"
diff "$folder/output" - >/dev/null <<'EXPECTED'
1 process: allowed
1 process, by single devices: allowed
2 processes: refused
2 processes, by single devices: allowed
EXPECTED
