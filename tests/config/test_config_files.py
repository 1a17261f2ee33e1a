"""Every configuration file is valid, and says what the paper says; tests/cli/test_summary.py builds their networks."""

from pathlib import Path

from attn_cnn_jax.cli.configs import known_configs, load_config
from attn_cnn_jax.config import attention_config, complete, validate
from attn_cnn_jax.models.encodings import REGISTRY


def test_every_file_is_valid_and_says_how_to_run_it():
    for name, path in known_configs().items():
        validate(load_config(name))
        complete(load_config(name))
        assert f"python train.py --config=configs/{name}.py" in Path(path).read_text().split('"""')[1]
    for encoding in REGISTRY:
        assert complete(load_config(f"digits_encodings:{encoding}")).model.encoding == encoding


def test_base_configuration_is_the_papers():
    config = attention_config()
    model = config.model
    assert (model.num_layers, model.num_heads, model.hidden_size, model.intermediate_size) == (6, 9, 400, 512)
    assert (model.head_size, model.downsample, model.image_shape, model.num_classes) == (0, 2, (32, 32, 3), 10)
    assert (model.dropout, model.attention_dropout, model.encoding, model.content) == (0.1, 0.1, "quadratic", False)
    assert (config.train.batch_size, config.train.num_epochs) == (100, 300)
    optimizer = config.optimizer
    assert (optimizer.name, optimizer.learning_rate, optimizer.momentum) == ("sgd", 0.1, 0.9)
    assert (optimizer.weight_decay, optimizer.schedule, optimizer.warmup_fraction) == (1e-4, "cosine", 0.05)
    assert (config.augment.crop_padding, config.augment.flip, config.dataset.name) == (4, True, "cifar10")


def test_files_of_the_paper_differ_from_the_base_in_the_network_alone():
    """But for the ResNet, whose rate steps down by ten without a warm-up."""
    base = attention_config().to_dict()
    for name, difference in {
        "quadratic": {},
        "quadratic_generalized": {"encoding": "quadratic_generalized"},
        "learned_rel": {"encoding": "learned"},
        "learned_rel_content": {"encoding": "learned", "content": True},
        "many_heads": {"num_heads": 16},
    }.items():
        assert load_config(name).to_dict() == base | {"model": base["model"] | difference}
    resnet = load_config("resnet18").to_dict()
    assert resnet["model"]["depth"] == 18
    changed = base["optimizer"] | {"schedule": "step", "boundaries": (80, 150, 250), "warmup_fraction": 0.0}
    assert resnet == base | {"model": resnet["model"], "optimizer": changed}
