"""What a report says, of a small network that is compiled for this processor in the place of a GPU."""

import jax
import pytest

from attn_cnn_jax.cli.compile import to_text
from attn_cnn_jax.cli.main import main
from attn_cnn_jax.compilation import report, targets
from attn_cnn_jax.compilation.programs import lower
from attn_cnn_jax.config import attention_config, complete
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.training.mesh import data_mesh

HALF = {"half_size_until": 0.5}


def small(**augment):
    """A network of one layer for `digits`, complete."""
    model = {"hidden_size": 8, "intermediate_size": 8, "num_layers": 1, "num_heads": 2, "downsample": 1}
    config = attention_config(**model)
    config.dataset.name = "digits"
    config.train.update({"batch_size": 16, "num_epochs": 3, "eval_batch_size": 40})
    config.augment.update(augment)
    return complete(config)


@pytest.fixture
def create(monkeypatch):
    """`create(config)`: its report."""
    monkeypatch.setattr(report, "mesh_of", lambda target: data_mesh(jax.devices()[:1]))
    return lambda config: report.create(config, targets.parse("h100"))


def test_every_step_counts_as_one_of_whole_pictures_and_the_report_says_so(create):
    lowered = [lower(small(**augment), data_mesh(jax.devices()[:1])).training.as_text() for augment in ({}, HALF)]
    assert lowered[0] == lowered[1]
    said = "left out: config.augment.half_size_until=0.5"
    result = create(small(**HALF))
    assert result["left_out"] == {"augment.half_size_until": 0.5}
    assert said in to_text({"config": "digits"} | result)
    assert "left out" not in to_text({"config": "digits"} | create(small()))


BATCHES = {"training": "config.train.batch_size=16", "evaluation": "config.train.eval_batch_size=40"}


def check_refusal(create, program):
    """A report is refused with the batch of that program, and not of the other."""
    with pytest.raises(UserError) as error:
        create(small())
    said = str(error.value)
    assert [name for name in BATCHES if BATCHES[name] in said] == [program]
    assert f"lower {BATCHES[program].partition('=')[0]}," in said
    assert "h100 has 79.1 GiB" in said
    assert len(said.splitlines()) == 2


@pytest.mark.parametrize("program", BATCHES)
def test_what_each_program_needs_is_compared_with_the_memory(create, monkeypatch, program):
    needed = iter(2**40 if name == program else 2**20 for name in BATCHES)
    monkeypatch.setattr(report, "memory_of", lambda compiled: {"needed": next(needed)})
    check_refusal(create, program)


class Refused:
    """A program that the compiler finds too large, as compilers for TPUs do."""

    def compile(self):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm")


@pytest.mark.parametrize("program", BATCHES)
def test_a_program_that_the_compiler_refuses_is_named(create, monkeypatch, program):
    monkeypatch.setattr(report, "lower", lambda *arguments: lower(*arguments)._replace(**{program: Refused()}))
    check_refusal(create, program)


def test_the_command_refuses_a_network_that_does_not_fit_in_two_lines(monkeypatch, capsys):
    """What a step needs is compared with the memory of the device, here 1 MB."""
    chip, config = targets.GPUS["h100"]
    monkeypatch.setitem(targets.GPUS, "h100", (chip._replace(memory=2**20), config))
    monkeypatch.setattr(report, "mesh_of", lambda target: data_mesh(jax.devices()[:1]))
    command = ["compile", "--config=digits", "--config.model.num_layers=1", "--config.train.batch_size=16"]
    assert main([*command, "--config.model.hidden_size=8", "--for=h100"]) == 1
    error = capsys.readouterr().err
    assert "config.train.batch_size=16 needs" in error
    assert "h100 has" in error
    assert len(error.splitlines()) == 2
