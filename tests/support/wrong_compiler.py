"""A compiler that puts a program's first columns in the place of its last ones, as jaxlib 0.10.2 did."""

import jax

from attn_cnn_jax import compiling


def wrong_compiler(monkeypatch):
    """Lets all programs that are compiled from here on compute so."""
    right = compiling.jit

    def last_columns(x):
        return x.at[..., -1].set(x[..., 0]) if x.ndim and x.shape[-1] > 1 else x

    def jit(function, **arguments):
        return right(lambda *args: jax.tree.map(last_columns, function(*args)), **arguments)

    monkeypatch.setattr(compiling, "jit", jit)
