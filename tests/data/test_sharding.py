"""Augmentation on eight fake devices, in a process of its own: the device count is fixed when JAX starts."""

import os
import subprocess
import sys

_PROGRAM = """
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from attn_cnn_jax.data import augment

assert len(jax.devices()) == 8
images = np.random.default_rng(0).integers(0, 256, (32, 32, 32, 3), np.uint8)
run = jax.jit(lambda key, x: augment.augment(key, x, crop_padding=4, flip=True))
key = jax.random.key(5)
alone = np.asarray(run(key, jax.device_put(images, jax.devices()[0])))
for count in (2, 8):
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:count]), ("data",)), PartitionSpec("data"))
    spread = jax.device_put(images, sharding)
    compiled = run.lower(key, spread).compile().as_text()
    assert "all-gather" not in compiled and "all-reduce" not in compiled, "pictures travel between devices"
    assert np.array_equal(alone, np.asarray(run(key, spread)))
print("same on 1, 2 and 8")
"""


def test_the_same_pictures_on_1_2_and_8_devices_and_none_travels():
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", _PROGRAM], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "same on 1, 2 and 8\n", done.stderr
