"""Each kind of encoding serves all that a run does, by the generic answers of the base class."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax import compilation, load_run
from attn_cnn_jax.analysis import heads
from attn_cnn_jax.analysis.figures import centres
from attn_cnn_jax.analysis.flops import count_flops
from attn_cnn_jax.config import attention_config, complete, create_model
from attn_cnn_jax.config.network import abstract_model
from attn_cnn_jax.data import sources
from attn_cnn_jax.data.augment import epoch_order
from attn_cnn_jax.interop.export import export
from attn_cnn_jax.models.attention.layer import for_platform
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.runs import checkpoints, directory
from attn_cnn_jax.runs.positions import create_recorder, read_positions
from attn_cnn_jax.runs.run import Run
from attn_cnn_jax.training.mesh import data_mesh, place
from attn_cnn_jax.training.optimizer import create_optimizer, learning_rate, matrices
from attn_cnn_jax.training.step import initial_state

NAMES = ("pape", "rope_mixed", "alibi", "kerple", "fire", "lookhere")  # others differ from one of these in a constant
CONTENT = NAMES[:2]


@pytest.mark.parametrize("name", NAMES)
def test_every_encoding_serves_all_that_a_run_does(name, tmp_path, data_dir):
    """Compiled ahead for two devices, trained there, resumed bit for bit; heads, figures, exports, FLOPs, bfloat16."""
    sizes = {"num_layers": 1, "num_heads": 3, "hidden_size": 8, "intermediate_size": 8, "downsample": 2}
    config = attention_config(encoding=name, dropout=0.0, attention_dropout=0.0, **sizes)
    config.dataset.update({"name": "digits", "data_dir": str(data_dir)})
    config.augment.update({"crop_padding": 0, "flip": False})
    config.train.update({"batch_size": 6, "num_epochs": 1})
    config, mesh = complete(config), data_mesh(jax.devices()[:2])
    program = compilation.lower(config, mesh)[0].compile()
    model, digits = create_model(config.model, rngs=nnx.Rngs(0)), sources.load("digits", data_dir).train
    rate = learning_rate(config.optimizer, 1, len(digits.labels) // 6)
    skeleton, state = initial_state(model, create_optimizer(config.optimizer, rate, shaped=matrices(model)))
    pictures = place(digits, mesh)
    step = lambda state: program(place(state, mesh), pictures, place(jnp.int32(1), mesh))  # noqa: E731
    first, results = step(state)

    begin_with = np.asarray(epoch_order(config.seed, 0, len(digits.labels))[:6])
    run, images = Run(config, 0, model), digits.images[begin_with]
    loss = run.evaluate(images, digits.labels[begin_with]).loss
    np.testing.assert_allclose(results["loss"][0], loss, rtol=1e-5)  # two devices and a run agree

    directory.claim(tmp_path, config)
    kept = jax.device_get(first)
    with checkpoints.saving(tmp_path, config) as manager:
        checkpoints.save(manager, 1, first, config, {})
    create_recorder(config.model, skeleton, tmp_path, -1)(1, 1.0, kept.parameters)
    assert bool(read_positions(tmp_path)) == (name not in CONTENT)
    again = checkpoints.restore(tmp_path, 1, place(state, mesh))[0]
    chex.assert_trees_all_equal(jax.device_get(step(again)), jax.device_get(step(first)))

    run = load_run(tmp_path)
    attention = run.attention(images[:2])[0]
    of_heads = attention.mean(axis=0) if name in CONTENT else attention
    found = heads.rows(run, [heads.layer_statistics(attention, np.zeros((1, 2), int))])
    assert all(np.isfinite(row["entropy"]) for row in found)
    figure = centres.draw_run(run, [of_heads])
    assert len(figure.axes) >= 1
    assert count_flops(config.model).full > count_flops(config.model).linear > 0
    if name in ("pape", "rope_mixed", "lookhere"):  # arrays of all are exported in tests/interop
        assert "largest difference" in export(run, tmp_path / "export", "jax")
    expected, x = run.logits(images), run.normalised(images)
    if name in CONTENT:  # the others have the forms of the paper's encodings
        on_gpu = for_platform(run.model, "gpu")
        chex.assert_trees_all_close(jax.jit(lambda x: on_gpu(x)[0])(x), expected, rtol=1e-4, atol=1e-5)
    config.model.dtype = "bfloat16"
    half = join(split(abstract_model(config.model))[0], split(run.model)[1], {})
    with jax.numpy_dtype_promotion("standard"):
        narrow = jax.jit(lambda x: half(x)[0])(x.astype(jnp.bfloat16))
    chex.assert_trees_all_close(narrow, expected, atol=0.1 * float(np.abs(expected).max()))
