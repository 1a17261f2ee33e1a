"""Tests run on eight fake CPU devices without implicit promotion, those `as_users` as users run programs."""

import gc
import importlib.machinery
import importlib.util
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
# `make test` runs the tests with the mark `as_users` on their own, as users compile: without what follows.
AS_USERS = os.environ.get("AS_USERS") == "1"
if not AS_USERS:
    # Where LLVM gets each program in one part, XLA compiles on CPUs a tenth to a quarter faster; without fusion
    # emitters, a flag that versions after 0.10 do not know, in two thirds of the time. These are other programs than
    # users run: what the tests below hold on numbers, those with the mark hold on the users' programs.
    os.environ["XLA_FLAGS"] = " ".join(
        (
            os.environ.get("XLA_FLAGS", ""),
            "--xla_force_host_platform_device_count=8",
            "--xla_cpu_parallel_codegen_split_count=1",
            "--xla_cpu_use_fusion_emitters=false" if version("jaxlib").startswith("0.10.") else "",
        )
    )
    # Tests compile much and compute little: without most of LLVM's optimisations they take half the time. Environment
    # variables, before JAX is imported, so that processes which tests start do the same and share what is compiled.
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    # Random bits of the CPU's own generator take half the time to trace and compile; draws of the default one are the
    # golden numbers, those of earlier versions, and all with the mark.
    os.environ["JAX_DEFAULT_PRNG_IMPL"] = "unsafe_rbg"
# Programs that several tests or processes compile are compiled once.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", tempfile.mkdtemp(prefix="attn_cnn_jax_tests_"))
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
# Nor does what passed the self-check reach the user's cache folder.
os.environ["XDG_CACHE_HOME"] = os.path.join(os.environ["JAX_COMPILATION_CACHE_DIR"], "home")

import jax  # noqa: E402
import pytest  # noqa: E402
from jaxtyping import install_import_hook  # noqa: E402

# Before the package is imported. Not cli, runs.load and runs.run: what users give them wrongly they refuse by
# themselves, in words. An int is a float, as in type hints.
ROOMS = {path.parent.name for path in Path(__file__).parent.glob("attn_cnn_jax/*/__init__.py")} - {"cli", "runs"}
OF_RUNS = {path.stem for path in Path(__file__).parent.glob("attn_cnn_jax/runs/*.py")} - {"load", "run", "__init__"}
install_import_hook(
    [f"attn_cnn_jax.{room}" for room in (*ROOMS, *(f"runs.{name}" for name in OF_RUNS))],
    "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))",
)

from attn_cnn_jax.data import sources  # noqa: E402
from attn_cnn_jax.runs import selfcheck  # noqa: E402

# Programs hold many Python objects: looking through all of them 700 allocations apart takes 8% of the time.
gc.set_threshold(50_000, 20, 100)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


CHECK_ONCE = selfcheck.once
if not AS_USERS:
    # To hold each small program against NumPy, too, costs as much as its test: `self_check` is for those that need it.
    selfcheck.once = lambda text, check: None

collect_ignore = [] if AS_USERS else ["tests/as_users"]


def pytest_collection_modifyitems(items, config):
    """Notebooks first, which take longest: with several workers none begins a minute before the end.

    Tests with the mark are left out of other runs, where they would hold numbers of other programs and random bits.
    """
    items.sort(key=lambda item: "notebooks" not in item.path.parts)
    others = [item for item in items if bool(item.get_closest_marker("as_users")) != AS_USERS]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]


@pytest.fixture(autouse=True)
def torch_as_asked(request, monkeypatch):
    """Hides PyTorch from tests without the mark `torch`: what they test must work without it.

    CI has PyTorch, a plain `make test` does not.
    """
    if request.node.get_closest_marker("torch"):
        if importlib.util.find_spec("torch") is None:
            pytest.skip("PyTorch is not installed: make test EXTRAS=test,torch")
        return
    find = importlib.machinery.PathFinder.find_spec
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(
        importlib.machinery.PathFinder,
        "find_spec",
        lambda name, *where: None if name == "torch" else find(name, *where),
    )


@pytest.fixture(scope="module")
def self_check():
    """Lets programs be checked before they are used, from this test on to the end of its module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selfcheck, "once", CHECK_ONCE)
        yield


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    """A folder for prepared data sets that is not the user's, with the digits."""
    folder = tmp_path_factory.mktemp("data")
    sources.load("digits", folder)
    return folder
