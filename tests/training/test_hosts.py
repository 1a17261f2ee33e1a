"""What processes of a run compare before the first step, how they end together, and where process 0 listens."""

import json
import os
import socket
import subprocess
import sys

import pytest

from attn_cnn_jax.config import attention_config
from attn_cnn_jax.training import hosts, loop

# One of two processes: what it says of each check, as JSON; then the second fails, and the first must not wait for it.
# Arguments: number, port, directory, a run, a configuration.
PROCESS = """
import json, pathlib, socket, sys
from unittest import mock
from ml_collections import ConfigDict
from attn_cnn_jax import load_run
from attn_cnn_jax.config import attention_config
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.training import hosts, loop
from attn_cnn_jax.training.mesh import mesh_for

def settings():  # another seed, place of the data and version of each package
    config = attention_config()
    config.seed, config.dataset.data_dir = number, str(number)
    with mock.patch("attn_cnn_jax.training.hosts.metadata.version", lambda name: number):
        return hosts.settings(config)

number, port, folder, run = int(sys.argv[1]), int(sys.argv[2]), *map(pathlib.Path, sys.argv[3:5])
config = json.loads(sys.argv[5])
checks = {
    "everyone": lambda: hosts.everyone("x" * 3000 * number),
    "the same": lambda: hosts.check_same({"seed": 3, "rates": (1, 2)}),
    "differ": lambda: hosts.check_same(settings()),
    "shared": lambda: hosts.check_shared(folder / "0"),
    "not shared": lambda: hosts.check_shared(folder / str(number)),
    "batch": lambda: mesh_for(7).size,
    "trained": lambda: loop.run(ConfigDict(config), folder / "run"),
    "read alone": lambda: hosts.everyone(number or load_run(run).step),
    "elsewhere": lambda: socket.create_server((f"127.0.0.{2 + number}", port)).close(),  # fails if it listens there too
}
said = {}
with hosts.ends_with_the_others():
    hosts.connect(f"127.0.0.1:{port}", 2, number)
    for name, check in checks.items():
        try:
            said[name] = check()
        except UserError as error:
            said[name] = str(error)
    print(json.dumps(said), flush=True)
    if number:
        raise UserError("no room on the disk")
    while True:
        hosts.everyone("still here")
"""


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_two_processes_compare_what_they_have_and_end_together(tmp_path, quadratic_run):
    for number in range(2):
        (tmp_path / str(number)).mkdir()
    (tmp_path / "0/.lock").touch()
    config = attention_config(hidden_size=8, intermediate_size=8, num_layers=1, num_heads=1, downsample=1)
    config.dataset.update({"name": "digits", "feed": "stream"})
    config.train.update({"batch_size": 40, "num_epochs": 1, "logger": "none"})  # 355 test images fill no batches
    port = str(free_port())
    pair = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(number), port, tmp_path, quadratic_run, config.to_json()],
            env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
            | {name: value for name, value in os.environ.items() if name.startswith(("JAX_", "XDG_"))},  # no XLA_FLAGS
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        (output, lost), (other, reason) = (process.communicate(timeout=120) for process in pair)
    finally:
        for process in pair:
            process.kill()
    assert [process.returncode for process in pair] == [1, 1], lost + reason
    assert "process 0 of 2 joins the others at 127.0.0.1:" in lost
    first, second = (json.loads(text.splitlines()[-1]) for text in (output, other))
    assert first | {"not shared": ""} == second | {"not shared": ""}
    assert first["everyone"] == ["", "x" * 3000]
    assert first["the same"] is first["shared"] is first["elsewhere"] is None
    differ = ", ".join(f"{name} (0 on process 0, 1 on process 1)" for name in ("config.seed", "version of flax"))
    assert first["differ"].startswith(f"the processes of this run differ in {differ}, ")
    assert "process 1 does not see the run directory of process 0, " in first["not shared"]
    assert first["batch"].startswith("config.train.batch_size=7: allowed is a multiple of 2")
    assert isinstance(first["trained"], dict), first["trained"]
    alone = loop.run(config, tmp_path / "alone")
    for split in ("train", "test"):
        for name in ("step", "loss", "accuracy"):
            assert first["trained"][split][name] == pytest.approx(alone[split][name], rel=1e-4)
    assert first["read alone"] == [20, 1]  # while the other process waits elsewhere
    assert reason.splitlines()[-1] == "no room on the disk"
    assert "another process of this run has ended: " in lost
    assert hosts.END_OF_ALL in lost
    assert "Traceback" not in lost + reason


def test_process_0_listens_at_its_own_address_alone():
    port = free_port()
    for host in ("127.0.0.1", "localhost"):
        assert hosts.listening_address(f"{host}:{port}") in (f"127.0.0.1:{port}", f"[::1]:{port}")
    for host in ("192.0.2.1", "nowhere.invalid"):  # RFC 5737, RFC 2606: no address of this machine
        assert hosts.listening_address(f"{host}:{port}") is None
