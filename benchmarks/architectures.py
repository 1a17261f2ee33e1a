"""Which architectures can the instrument measure? Tries those of timm and transformers, small, with random weights.

    python -m benchmarks.architectures --out=OUT [--library=timm] [--only=NAME,NAME]
    python -m benchmarks.architectures --show=results/architectures [--write]

Installs and downloads nothing. An architecture is `measured` where every softmax of the network is over patches whose
places were found, `in part` where some are, `refused` where none is, with the reason that `inspect` gives.
"""

import importlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import attn_cnn_jax
from attn_cnn_jax.errors import UserError, exits_with_messages, shortened
from attn_cnn_jax.files import write_atomically
from benchmarks.records import DOCS, markdown, parse, parser, show

PAGE = DOCS / "architectures.md"
OUTCOMES = ("measured", "in part", "refused", "failed")
IMAGES = 2
# timm's names, by the size of image that they take; smallest of each family.
TIMM = {
    64: (
        "vit_tiny_patch16_224 vit_relpos_small_patch16_224 vit_srelpos_small_patch16_224 "
        "vit_dlittle_patch16_reg1_gap_256  vit_little_patch16_reg4_gap_256 vit_medium_patch16_gap_240 "
        "vit_wee_patch16_reg1_gap_256 vit_xsmall_patch16_clip_224  vit_base_patch16_siglip_224 "
        "vit_betwixt_patch16_rope_reg4_gap_256 vit_pwee_patch16_reg1_gap_256  deit_tiny_patch16_224 "
        "deit_tiny_distilled_patch16_224 deit3_small_patch16_224 flexivit_small  beit_base_patch16_224 "
        "beitv2_base_patch16_224 eva02_tiny_patch14_224 cait_xxs24_224 convit_tiny xcit_nano_12_p16_224 "
        "vit_small_patch14_dinov2 vit_small_patch14_reg4_dinov2 vit_small_patch16_dinov3 "
        "vit_small_patch16_rope_224  naflexvit_base_patch16_gap samvit_base_patch16_224 hiera_tiny_224 "
        "crossvit_tiny_240 visformer_tiny"
    ),
    224: (
        "swin_tiny_patch4_window7_224 swin_s3_tiny_224 pit_ti_224 levit_128s twins_pcpvt_small "
        "twins_svt_small  pvt_v2_b0 poolformer_s12 maxvit_rmlp_pico_rw_256 maxvit_tiny_rw_224 "
        "coatnet_nano_rw_224 coat_lite_tiny mvitv2_tiny davit_tiny edgenext_xx_small  efficientformer_l1 "
        "efficientformerv2_s0 efficientvit_b0 efficientvit_m0 fastvit_t8 gcvit_xxtiny  mobilevit_xxs "
        "mobilevitv2_050 nest_tiny nextvit_small repvit_m1 tiny_vit_5m_224 tnt_s_patch16_224  volo_d1_224 "
        "caformer_s18 inception_next_atto mixer_s16_224 resmlp_12_224 botnet26t_256 halonet26t "
        "lambda_resnet26t eca_botnext26ts_256 sebotnet33ts_256 bat_resnext26ts mobilenetv4_hybrid_medium "
        "shvit_s1 starnet_s1"
    ),
    256: "swinv2_tiny_window8_256 swinv2_cr_tiny_224",
}
SMALL = dict(
    hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48, image_size=64, patch_size=16
)
WINDOWS: dict[str, Any] = {"image_size": 64, "patch_size": 4, "embed_dim": 12, "depths": [2, 2], "num_heads": [2, 4]}
WINDOWS |= {"window_size": 4}
# Its own range of weights is so small that no image reaches a layer.
MOBILE = {"image_size": 224, "patch_size": 2, "initializer_range": 0.1}
SAM = {"window_size": 2, "global_attn_indexes": [1], "output_channels": 16, "mlp_dim": 48}
# Configuration and network of transformers, what differs from SMALL (None: the configuration's own sizes).
TRANSFORMERS: dict[str, tuple[str, str, dict | None]] = {
    "ViT": ("ViTConfig", "ViTForImageClassification", {}),
    "DeiT": ("DeiTConfig", "DeiTForImageClassification", {}),
    "BEiT": ("BeitConfig", "BeitForImageClassification", {}),
    "Data2Vec": ("Data2VecVisionConfig", "Data2VecVisionForImageClassification", {}),
    "DINOv2": ("Dinov2Config", "Dinov2Model", {}),
    "DINOv2 with registers": ("Dinov2WithRegistersConfig", "Dinov2WithRegistersModel", {}),
    "DINOv3": ("DINOv3ViTConfig", "DINOv3ViTModel", {}),
    "I-JEPA": ("IJepaConfig", "IJepaModel", {}),
    "ViTMAE": ("ViTMAEConfig", "ViTMAEModel", {}),
    "ViT-MSN": ("ViTMSNConfig", "ViTMSNModel", {}),
    "YOLOS": ("YolosConfig", "YolosModel", {"image_size": [64, 64], "num_detection_tokens": 10}),
    "CLIP vision": ("CLIPVisionConfig", "CLIPVisionModel", {}),
    "SigLIP vision": ("SiglipVisionConfig", "SiglipVisionModel", {}),
    "ViTDet": ("VitDetConfig", "VitDetModel", {"window_size": 2}),
    "DPT": ("DPTConfig", "DPTModel", {"backbone_out_indices": [0, 1, 1, 1], "num_hidden_layers": 4}),
    "Hiera": ("HieraConfig", "HieraModel", None),
    "Swin": ("SwinConfig", "SwinModel", WINDOWS),
    "Swin v2": ("Swinv2Config", "Swinv2Model", WINDOWS),
    "SegFormer": ("SegformerConfig", "SegformerModel", None),
    "PVT": ("PvtConfig", "PvtModel", None),
    "PVT v2": ("PvtV2Config", "PvtV2Model", None),
    "LeViT": ("LevitConfig", "LevitModel", None),
    "MobileViT": ("MobileViTConfig", "MobileViTModel", MOBILE),
    "MobileViT v2": ("MobileViTV2Config", "MobileViTV2Model", None),
    "CvT": ("CvtConfig", "CvtModel", None),
    "PoolFormer": ("PoolFormerConfig", "PoolFormerModel", None),
    "SAM vision": ("SamVisionConfig", "SamVisionModel", SAM),
    "Pixio": ("PixioConfig", "PixioModel", {}),
}  # fmt: skip


def timm_networks() -> dict[str, tuple[int, Callable[[], Any]]]:
    """By name the size of its images, and what makes the network."""
    import timm

    def make(name: str, size: int) -> Any:
        options = {"num_classes": 10}
        for more in ({"img_size": size}, {}):
            try:
                return timm.create_model(name, **options, **more)
            except TypeError:  # this family has no size of images
                continue
        raise UserError(f"timm has no {name}")

    sizes = {name: size for size, names in TIMM.items() for name in names.split()}
    return {name: (size, lambda name=name, size=size: make(name, size)) for name, size in sizes.items()}


def transformers_networks() -> dict[str, tuple[int, Callable[[], Any]]]:
    """By name the size of its images, and what makes the network."""
    library = importlib.import_module("transformers")

    def make(config: str, network: str, options: dict | None) -> Any:
        own = {} if options is None else options if "embed_dim" in options else SMALL | options
        return getattr(library, network)(getattr(library, config)(**own))

    return {
        name: (224 if options in (None, MOBILE) else 64, lambda row=(config, network, options): make(*row))
        for name, (config, network, options) in TRANSFORMERS.items()
    }


LIBRARIES = {"timm": timm_networks, "transformers": transformers_networks}


def attempt(size: int, make: Callable[[], Any]) -> dict[str, Any]:
    """What `inspect` says of one architecture."""
    import torch

    torch.manual_seed(0)
    started = time.process_time()
    images = torch.from_numpy(np.random.default_rng(0).normal(size=(IMAGES, 3, size, size)).astype(np.float32))
    try:
        network = make().eval()
        with torch.inference_mode():
            network(images)
    except Exception as error:  # of another library: no statement about the instrument
        return {"outcome": "not built", "why": shortened(error)}
    try:
        report = attn_cnn_jax.inspect(network, images)
    except UserError as error:
        found = {"outcome": "refused", "why": str(error)}
    except Exception as error:  # a fault of the instrument, kept as such
        found = {"outcome": "failed", "why": f"{type(error).__name__}: {shortened(error)}"}
    else:
        notes = [note for note in report.notes if note.startswith("not measured")]
        grids = list(dict.fromkeys("x".join(map(str, grid)) for grid in report.grids))
        found = {"outcome": "in part" if notes else "measured", "why": "; ".join(notes)}
        found |= {"layers": len(report.grids), "grids": grids}
    return found | {"cpu_seconds": round(time.process_time() - started, 1)}


def measure(library: str, only: Sequence[str], place: Path) -> None:
    """Tries the architectures of a library, and writes what was found after each."""
    found: dict[str, dict] = json.loads(place.read_text("utf-8")) if place.exists() else {}
    for name, (size, make) in LIBRARIES[library]().items():
        if (only and name not in only) or (not only and name in found):
            continue
        found[name] = {"size": size} | attempt(size, make)
        print(f"{name}: {found[name]}", flush=True)
        write_atomically(place, json.dumps(found, indent=1) + "\n")


def kept(folder: Path) -> list[dict]:
    """The records, by library and outcome; without architectures that the library itself could not build or run."""
    records = [
        {"library": path.stem, "name": name} | record
        for path in sorted(folder.glob("*.json"))
        for name, record in json.loads(path.read_text("utf-8")).items()
        if record["outcome"] != "not built"
    ]
    return sorted(records, key=lambda record: (record["library"], OUTCOMES.index(record["outcome"]), record["name"]))


def tables(folder: Path) -> str:
    """Counts by outcome, and a row per architecture."""
    records, rows = kept(folder), []
    counts = Counter((record["library"], record["outcome"]) for record in records)
    libraries = sorted({record["library"] for record in records})
    totals = [
        {"library": library} | {outcome: counts[library, outcome] for outcome in OUTCOMES} for library in libraries
    ]
    if len(libraries) > 1:
        totals.append({"library": "both"} | {o: sum(counts[library, o] for library in libraries) for o in OUTCOMES})
    for record in records:
        row = {"library": record["library"], "architecture": f"`{record['name']}`", "outcome": record["outcome"]}
        row |= {"layers": record.get("layers", ""), "grids": ", ".join(record.get("grids", []))}
        why = " ".join(record["why"].replace("|", "/").split())
        rows.append(row | {"what was seen": why if len(why) <= 240 else f"{why[:237]}..."})
    return "\n".join(markdown(table, tuple(table[0])) for table in (totals, rows))


@exits_with_messages
def main(argv: Sequence[str] | None = None) -> int:
    described = parser(__doc__)
    described.add_argument("--library", choices=tuple(LIBRARIES), default="timm")
    described.add_argument("--only", default="", help="names, with commas between them")
    options = parse(described, argv)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        only = [name for name in options.only.split(",") if name]
        measure(options.library, only, options.out / f"{options.library}.json")
    else:
        show(tables(options.show), PAGE, "architectures", write=options.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
