"""Architectures of timm and transformers have the outcome that the table states: `make architectures`.

One of each kind: global attention, class token, gated attention, patches that do not fill the image, windows, windows
after heads, pyramids whose patches overlap, layers that no place reaches, pooled keys, channels, no softmax.
"""

import json

import pytest

from benchmarks import architectures
from benchmarks.records import RESULTS

KINDS = {
    "timm": (
        "vit_tiny_patch16_224",
        "deit_tiny_distilled_patch16_224",
        "convit_tiny",
        "vit_small_patch14_reg4_dinov2",
        "swin_tiny_patch4_window7_224",
        "hiera_tiny_224",
        "pit_ti_224",
        "levit_128s",
        "twins_pcpvt_small",
        "xcit_nano_12_p16_224",
        "poolformer_s12",
    ),
    "transformers": ("ViT", "DINOv2 with registers", "SigLIP vision", "ViTMAE", "Swin v2"),
}


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize(("library", "name"), [(library, name) for library, names in KINDS.items() for name in names])
def test_outcome_is_that_of_the_table(library, name):
    pytest.importorskip(library)
    kept = json.loads((RESULTS / "architectures" / f"{library}.json").read_text("utf-8"))[name]
    size, make = architectures.LIBRARIES[library]()[name]
    found = architectures.attempt(size, make)
    assert (found["outcome"], found.get("grids")) == (kept["outcome"], kept.get("grids"))
