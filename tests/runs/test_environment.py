"""Which machine made a number: kept with a run, said where a run continues or was measured on another one."""

import json
import os

import pytest

from attn_cnn_jax import export, load_run
from attn_cnn_jax.cli.main import main as attn_cnn
from attn_cnn_jax.interop.card import card
from attn_cnn_jax.runs import environment, metrics
from attn_cnn_jax.runs.pretrained import FOLDER


def test_a_machine_is_noted_once_and_another_one_said(tmp_path):
    here = environment.describe()
    assert here["processor"]
    assert environment.record(tmp_path, -1, here) == ""
    assert environment.record(tmp_path, 30, here) == ""
    other = here | {"jaxlib": "0.12.0", "vectors": "AVX-512"}
    line = environment.record(tmp_path, 60, other)
    assert f"jaxlib ('{here['jaxlib']}' before, '0.12.0' now)" in line
    assert [each["step"] for each in environment.read_environments(tmp_path)] == [0, 60]
    made_by = [environment.of_step(environment.read_environments(tmp_path), step)["jaxlib"] for step in (30, 60, 90)]
    assert made_by == [here["jaxlib"], "0.12.0", "0.12.0"]
    environment.record(tmp_path, 40, here)  # a checkpoint before: what came after it is forgotten
    assert [each["step"] for each in environment.read_environments(tmp_path)] == [0]


def test_another_number_of_cores_is_another_machine(tmp_path, monkeypatch):
    monkeypatch.delenv("PJRT_NPROC", raising=False)
    monkeypatch.delenv("NPROC", raising=False)
    here = environment.describe()
    environment.record(tmp_path, -1, {key: value for key, value in here.items() if key != "cores"})
    assert environment.record(tmp_path, 10, here) == ""  # an earlier version did not count them
    for name, many in (("NPROC", 96), ("PJRT_NPROC", 97)):  # XLA reads the second first
        monkeypatch.setenv(name, str(many))
        assert environment.describe()["cores"] == many
    monkeypatch.setenv("PJRT_NPROC", "many")
    assert environment.describe()["cores"] == 96
    monkeypatch.setenv("PJRT_NPROC", "97")
    environment.record(tmp_path, -1, here)
    assert f"cores ({here['cores']} before, 97 now)" in environment.record(tmp_path, 20, environment.describe())
    assert "cores: 97" in environment.in_words(environment.describe())


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not bind processes to cores")
def test_cores_that_a_process_may_not_use_do_not_count(monkeypatch):
    monkeypatch.delenv("PJRT_NPROC", raising=False)
    monkeypatch.delenv("NPROC", raising=False)
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert environment.describe()["cores"] == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_a_record_of_an_earlier_version_is_named_until_it_is_measured_again(quadratic_run, tmp_path, capsys):
    run = tmp_path / "run"
    run.symlink_to(quadratic_run)
    before = (quadratic_run / metrics.FILE).read_text()
    try:
        for command in (["summary", str(run)], ["compare", str(run)]):
            assert attn_cnn(command) == 0
            assert f"evaluate {run} --keep" in capsys.readouterr().out
        assert "measured before version 0.4" in card(load_run(run), "safetensors")
        assert attn_cnn(["evaluate", str(run), "--keep"]) == 0
        capsys.readouterr()
        record = metrics.last_records(run)["test"]
        assert (record["count"], record["accuracy"]) == (355, record["right"] / 355)
        assert attn_cnn(["compare", str(run)]) == 0
        assert "--keep" not in capsys.readouterr().out
        assert environment.in_words(environment.describe()) in card(load_run(run), "safetensors")
    finally:
        (quadratic_run / metrics.FILE).write_text(before)
        (quadratic_run / environment.FILE).unlink(missing_ok=True)


def test_compare_names_the_machines_where_they_differ(make_run, capsys):
    runs = [make_run("one"), make_run("other", num_heads=1)]
    for run, jaxlib in zip(runs, ("0.10.2", "0.12.0"), strict=True):
        (run / environment.FILE).write_text(json.dumps({"step": 0, **environment.describe(), "jaxlib": jaxlib}) + "\n")
    assert attn_cnn(["compare", *map(str, runs)]) == 0
    text = capsys.readouterr().out
    assert "jaxlib 0.10.2" in text
    assert "jaxlib 0.12.0" in text


@pytest.mark.parametrize("given", [["--images=5"], ["--size=16x16"]])
def test_what_is_no_test_result_is_not_kept(quadratic_run, given, capsys):
    assert attn_cnn(["evaluate", str(quadratic_run), "--keep", *given]) == 2
    assert "--keep needs a run directory" in capsys.readouterr().err


def test_networks_of_the_package_and_exported_ones_are_not_written_to(quadratic_run, tmp_path, capsys):
    export(load_run(quadratic_run), tmp_path / "exported")
    for run in ("pretrained:digits", str(tmp_path / "exported")):
        folder = FOLDER / "digits" if run.startswith("pretrained") else tmp_path / "exported"
        before = {path: path.read_bytes() for path in sorted(folder.iterdir())}
        assert attn_cnn(["evaluate", run, "--keep"]) == 2
        assert "--keep needs a run directory" in capsys.readouterr().err
        assert {path: path.read_bytes() for path in sorted(folder.iterdir())} == before
