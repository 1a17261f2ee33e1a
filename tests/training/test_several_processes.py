"""What processes of a run say before the first step: whom they wait for, where they listen, what differs."""

import json
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from attn_cnn_jax.config import attention_config
from attn_cnn_jax.errors import UserError, listed
from attn_cnn_jax.training.distributed import comparison, connection

# One of two processes: what it says of each check, as JSON. Arguments: port, number, directory, a run.
PROCESS = """
import json, pathlib, socket, sys
import jax
from attn_cnn_jax import load_run
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.variables import split
from attn_cnn_jax.runs.checkpoints import checksum, saved_config
from attn_cnn_jax.training.distributed import comparison
from attn_cnn_jax.training.distributed.connection import connect
from attn_cnn_jax.training.start import begin

port, number, folder, run = int(sys.argv[1]), int(sys.argv[2]), *map(pathlib.Path, sys.argv[3:])
connect(f"127.0.0.1:{port}", 2, number)


def start():
    config = load_run(run).config
    config.start.run = str(run)
    return checksum(split(begin(config, folder).model)[1])


checks = {
    "everyone": lambda: comparison.everyone("x" * 3000 * number),
    "the same": lambda: comparison.check_same({"seed": 3, "rates": (1, 2)}),
    "differ": lambda: comparison.check_same({"seed": number, "rates": (1, 2)}),
    "shared": lambda: comparison.check_shared(folder),
    "not shared": lambda: comparison.check_shared(folder / str(number)),
    "load": lambda: load_run(run).step,
    "start": start,
    "read alone": lambda: comparison.everyone(number or saved_config(run).seed),
    "elsewhere": lambda: socket.create_server((f"127.0.0.{2 + number}", port)).close(),  # fails if it listens there too
}
said = {}
for name, check in checks.items():
    try:
        said[name] = check()
    except UserError as error:
        said[name] = str(error)
print(json.dumps(said))
"""


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_two_processes_compare_what_they_have(tmp_path, quadratic_run):
    for number in range(2):
        (tmp_path / str(number)).mkdir()
    port = free_port()
    pair = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(port), str(number), tmp_path, quadratic_run],
            env={"JAX_PLATFORMS": "cpu", "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=120) for process in pair]
    finally:
        for process in pair:
            process.kill()
    assert [process.returncode for process in pair] == [0, 0], outputs
    first, second = (json.loads(output.splitlines()[-1]) for output, _ in outputs)
    assert first == second
    assert first["everyone"] == ["", "x" * 3000]
    assert first["the same"] is first["shared"] is first["elsewhere"] is None
    assert first["differ"].startswith("the processes of this run differ in seed (0 on process 0, 1 on process 1)\n")
    assert f"process 1 does not see the run directory of process 0: {tmp_path / '1'}" in first["not shared"]
    assert f"is not {tmp_path / '0'} on" in first["not shared"]
    assert first["load"] == 20
    assert isinstance(first["start"], int)  # a checksum, no error
    assert first["read alone"] == [0, 1]  # while the other process waits elsewhere
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["0", "1"]


def test_what_differs_is_named_once_with_the_first_process_that_does():
    same = {"seed": 0, "rate": 0.1, "data": "a"}
    found = [same, same, {"rate": 0.2, "data": "a"}, {"seed": 0, "rate": 0.3, "data": "b"}]
    assert comparison.differences(found) == [
        "rate (0.1 on process 0, 0.2 on process 2)",
        "seed (0 on process 0, None on process 2)",
        "data ('a' on process 0, 'b' on process 3)",
    ]
    assert comparison.differences([same, dict(same), dict(same)]) == []
    many = listed(comparison.differences([dict.fromkeys("abcdefg", 0), dict.fromkeys("abcdefg", 1)]))
    assert many.startswith("a (0 on process 0, 1 on process 1), b (")
    assert many.endswith("e (0 on process 0, 1 on process 1), and 2 more")


def test_one_process_has_nothing_to_compare(tmp_path):
    comparison.check_same({"seed": 0})
    comparison.check_shared(tmp_path / "nowhere")
    assert comparison.everyone([1, None]) == [[1, None]]


def test_settings_are_all_of_the_configuration_but_where_the_data_lies():
    config = attention_config()
    config.dataset.data_dir = "/here"
    found = comparison.settings(config)
    assert found["config.model.image_shape"] == [32, 32, 3]
    assert found["config.optimizer.learning_rate"] == config.optimizer.learning_rate
    assert "/here" not in found.values()
    assert found["version of numpy"]
    assert json.loads(json.dumps(found)) == found


def test_processes_with_other_numbers_of_devices_are_refused():
    devices = [SimpleNamespace(process_index=number) for number in (0, 1, 1)]
    with pytest.raises(UserError, match="different numbers of devices: process 0 has 1") as caught:
        comparison.check_same_devices(devices)
    assert len(str(caught.value).splitlines()) == 2
    comparison.check_same_devices(devices[:1])
    comparison.check_same_devices(devices[:2])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_process_0_listens_where_it_is_told(host):
    port = free_port()
    assert connection.listening_address(f"{host}:{port}") in (f"127.0.0.1:{port}", f"[::1]:{port}")


def test_a_name_of_this_machine_alone_is_none_that_others_reach(monkeypatch, capsys):
    """Some systems give the host's own name an address of the loopback interface."""
    port = free_port()
    monkeypatch.setattr(connection, "addresses", lambda name, port: [("127.0.0.1", port)])
    assert connection.listening_address(f"node0:{port}") == f"[::]:{port}"
    assert f"process 0 listens on all, at port {port}" in capsys.readouterr().err


def test_another_machines_address_and_an_unknown_name_are_listened_to_everywhere(capsys):
    port = free_port()
    for host in ("192.0.2.1", "nowhere.invalid"):  # RFC 5737, RFC 2606
        assert connection.listening_address(f"{host}:{port}") == f"[::]:{port}"
        assert f"{host} is no address of this machine" in capsys.readouterr().err


def test_who_does_not_come_is_said(monkeypatch, capsys):
    monkeypatch.setattr(connection, "PATIENCE", 0.0)
    for number, expected in (
        (0, "process 0 of 2 waits for the other processes at h:1, up to 300 s\n"),
        (1, "process 1 of 2 waits for process 0 at h:1, up to 300 s\n"),
    ):
        said = ""
        with connection.says_who_is_missing("h:1", 2, number):
            while not said:
                time.sleep(0.01)
                said = capsys.readouterr().err
        assert said == expected
    monkeypatch.undo()
    with connection.says_who_is_missing(None, None, None):
        pass
    assert capsys.readouterr().err == ""
