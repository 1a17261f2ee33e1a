"""The door for compiling: all programs go through it, with options that this compiler knows, and run everywhere."""

import ast
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import attn_cnn_jax
from attn_cnn_jax import compiling

PACKAGE = Path(attn_cnn_jax.__file__).parent
ELSEWHERE = {"compiling.py", "interop/export.py", "runs/known_answers.py"}  # the door; StableHLO; XLA's defaults


def test_all_programs_of_the_package_go_through_the_door():
    found = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                name = f"{node.value.id}.{node.attr}"
                if name in ("jax.jit", "nnx.jit", "jax.pmap", "pjit.pjit"):
                    found.setdefault(path.relative_to(PACKAGE).as_posix(), []).append(node.lineno)
    assert found.keys() == ELSEWHERE, found


def known(monkeypatch, option, value, platform="cpu"):
    here = compiling.Known((compiling.JAXLIB,), platform, option, value, "some reason", "a report")
    monkeypatch.setattr(compiling, "KNOWN", (here,))
    compiling.options.cache_clear()


def test_an_option_that_the_compiler_does_not_know_is_left_out(monkeypatch):
    known(monkeypatch, "xla_cpu_of_another_version", "1")
    assert compiling.options() == {}
    assert compiling.jit(lambda x: x + 1)(1) == 2
    known(monkeypatch, "xla_backend_optimization_level", "1", platform="tpu")  # of another platform
    assert compiling.options("cpu") == {}
    known(monkeypatch, "xla_backend_optimization_level", "1")
    assert compiling.options("cpu") == {"xla_backend_optimization_level": "1"}
    assert "some reason (a report)" in compiling.reasons()
    monkeypatch.undo()
    compiling.options.cache_clear()


def test_a_program_works_inside_others_and_under_transformations(monkeypatch):
    known(monkeypatch, "xla_backend_optimization_level", "1")
    square = compiling.jit(lambda x: x**2)
    x = jnp.arange(3.0)
    np.testing.assert_array_equal(square(x), [0, 1, 4])
    np.testing.assert_array_equal(jax.jit(lambda x: square(x) + square(jnp.ones(3)))(x), [1, 2, 5])
    np.testing.assert_array_equal(jax.grad(lambda x: square(x).sum())(x), [0, 2, 4])
    np.testing.assert_array_equal(jax.vmap(square)(x), [0, 1, 4])
    np.testing.assert_array_equal(square.lower(x).compile()(x), [0, 1, 4])
    with jax.disable_jit():
        np.testing.assert_array_equal(square(x), [0, 1, 4])
    monkeypatch.undo()
    compiling.options.cache_clear()


def test_flags_that_came_too_late_are_named(monkeypatch):
    assert "had no effect" not in compiling.changed_flags()
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert "the change has no effect" in compiling.changed_flags()


def test_importing_the_package_changes_no_hook_logger_or_environment():
    code = """
import logging, os, sys
def state():
    loggers = [(name, logging.getLogger(name).filters[:]) for name in ("", "absl", "asyncio", "orbax")]
    return dict(os.environ), sys.unraisablehook, sys.excepthook, loggers
import jax, orbax.checkpoint
before = state()
import attn_cnn_jax
for name in attn_cnn_jax.__all__:
    getattr(attn_cnn_jax, name)
import attn_cnn_jax.runs.checkpoints, attn_cnn_jax.training.loop
assert state() == before, (before, state())
"""
    subprocess.run([sys.executable, "-c", code], check=True, env={"JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin"})
