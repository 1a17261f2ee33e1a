"""Where compiled programs are kept."""

import pwd

import jax
import pytest

from attn_cnn_jax.cli.train import use_compilation_cache


@pytest.fixture
def kept_in():
    """Returns the folder that the command chooses."""

    def choose():
        before = jax.config.jax_compilation_cache_dir
        jax.config.update("jax_compilation_cache_dir", None)
        try:
            use_compilation_cache()
            return jax.config.jax_compilation_cache_dir
        finally:
            jax.config.update("jax_compilation_cache_dir", before)

    return choose


@pytest.mark.parametrize(
    ("xdg", "folder"),
    [
        ("/c", "/c/attn_cnn_jax"),
        ("", "/h/.cache/attn_cnn_jax"),
        (None, "/h/.cache/attn_cnn_jax"),
        ("relative", "/h/.cache/attn_cnn_jax"),
    ],
)
def test_compiled_programs_are_kept_in_the_user_s_cache_folder(kept_in, monkeypatch, xdg, folder):
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if xdg is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    assert kept_in() == folder


def test_without_a_home_folder_nothing_is_kept(kept_in, monkeypatch):
    def nobody(uid):
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert kept_in() is None
