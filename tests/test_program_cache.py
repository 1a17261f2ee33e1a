"""Compiled programs are kept where a user has a cache folder, and nowhere else."""

import os
import subprocess
import sys

import pytest

from attn_cnn_jax import program_cache


@pytest.fixture
def set_in_jax(monkeypatch):
    monkeypatch.setattr(os, "environ", {**os.environ})
    del os.environ["JAX_COMPILATION_CACHE_DIR"]
    monkeypatch.setattr(program_cache, "sys", type("NoJax", (), {"modules": {}}))

    def names():
        program_cache.keep_programs()
        return os.environ.get("JAX_COMPILATION_CACHE_DIR")

    return names


def test_the_folder_is_the_users_and_of_this_compiler(set_in_jax, tmp_path, monkeypatch):
    os.environ["XDG_CACHE_HOME"] = str(tmp_path := tmp_path / "not there yet")
    assert set_in_jax() == str(tmp_path / "attn_cnn_jax" / f"programs-{program_cache.compiler()}")
    assert int(os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"]) == program_cache.MOST_BYTES
    here = program_cache.compiler()
    monkeypatch.setattr(program_cache, "processor", lambda: "another")
    assert program_cache.compiler() != here


def test_nothing_is_set_without_a_cache_folder_or_beside_the_users_own(set_in_jax, tmp_path):
    (tmp_path / "file").touch()
    os.environ["XDG_CACHE_HOME"] = str(tmp_path / "file")
    assert set_in_jax() is None
    os.environ |= {"XDG_CACHE_HOME": str(tmp_path), "JAX_COMPILATION_CACHE_DIR": "mine"}
    assert set_in_jax() == "mine"
    assert "JAX_COMPILATION_CACHE_MAX_SIZE" not in os.environ


def test_a_program_from_the_cache_is_known_to_have_passed_the_self_check(tmp_path):
    """Its text is another than that of the same program when it was compiled: what is kept may not depend on it."""
    lines = (
        "import numpy as np, attn_cnn_jax, attn_cnn_jax.program_cache as cache",
        "cache.keep_programs()",
        "attn_cnn_jax.load_pretrained('digits').logits(np.zeros((1, 8, 8, 1), np.uint8))",
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("JAX_COMPILATION")}
    for _ in range(2):
        command = [sys.executable, "-c", "\n".join(lines)]
        subprocess.run(command, env=environment | {"XDG_CACHE_HOME": str(tmp_path)}, check=True)
        assert len([*(tmp_path / "attn_cnn_jax" / "checked").iterdir()]) == 1
