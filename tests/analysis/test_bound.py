"""The least time of a run, against FLOPs counted by hand over the peak."""

import pytest

from attn_cnn_jax.analysis.bound import bound
from attn_cnn_jax.analysis.flops import count_flops
from attn_cnn_jax.config import attention_config, complete
from attn_cnn_jax.errors import UserError


def test_the_bound_is_flops_over_the_peak():
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_layers": 1, "num_heads": 2, "downsample": 1}
    config = attention_config(**sizes, attention_dropout=0.0)
    config.dataset.name = "digits"
    config.train.update({"batch_size": 16, "num_epochs": 3, "eval_batch_size": 40})
    incomplete, config = config, complete(config)
    assert bound(incomplete, "h100") == bound(config, "h100")
    flops = count_flops(config.model)
    found = bound(config, "h100", devices=2)
    assert found.flops == 3 * 16 * flops.linear  # factorised: no averages
    assert found.step == pytest.approx(found.flops / (2 * 494.7e12))
    assert found.steps == 3 * (1442 // 16)
    assert found.run == pytest.approx(found.steps * found.step)
    with pytest.raises(UserError, match="chip='h10': allowed are h100"):
        bound(config, "h10")
    config.model.attention_dropout = 0.1
    assert bound(config, "h100").flops == 3 * 16 * flops.full
    config.train.matmul_precision = "highest"
    assert bound(config, "h100").step == pytest.approx(3 * 16 * flops.full / 66.9e12)
    config.model.content = True
    assert bound(config, "h100").flops == 3 * 16 * count_flops(config.model).merged
