"""How convolutional is a reader of handwriting? Measures the SVTRv2 inside an ONNX file of the PyPI package pmsh-ocr.

    pip install torch onnx onnxruntime pmsh-ocr==0.0.1
    python -m benchmarks.your_network --network=svtr --out=OUT

The file (17 MB, MIT) reads sums handwritten on screens, 64 x 256 pixels. Six blocks of grouped convolutions come
before six of attention, three over 8 x 64 patches and three over 4 x 64; there are no class token and no positions.
The network is built again in PyTorch and proven against ONNX Runtime. Images are rows of scikit-learn's digits.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

import attn_cnn_jax
from attn_cnn_jax.files import write_atomically
from benchmarks import dinov2, shipped
from benchmarks.records import markdown

NEEDED = {name: name for name in ("torch", "onnx", "onnxruntime")}
STAGES = ((64, "ccc"), (128, "ccc-aaa"), (256, "aaa"))  # channels; blocks of convolutions, none, or attention
HEIGHT, WIDTH, GROUP = 64, 256, 32  # pixels; channels of a head, and of a group of convolutions
DIGITS, SIDE = 3, 40  # of an image; pixels of a digit
PARTS = (((0, 1, 2), (8, 64)), ((3, 4, 5), (4, 64)))  # layers of attention, and their rows and columns of patches
MEASURED, READ = 32, 60  # images whose attention is measured, and that are read


def onnx_file() -> Path:
    """The file that pmsh-ocr ships; UserError that says what to install."""
    return shipped.file("svtr", NEEDED, "pmsh", "pmsh-ocr==0.0.1", "encoder_ctc.onnx")


def create() -> Any:
    """SVTRv2 of PyTorch with random weights: `(b, 3, 64, 256)` to features of patches `(b, 4 * 64, 256)`."""
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self, channels: int, kind: str) -> None:
            super().__init__()
            self.heads = channels // GROUP
            if kind == "a":
                self.qkv, self.proj = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
            else:
                convolutions = (nn.Conv2d(channels, channels, 3, padding=1, groups=self.heads) for _ in range(2))
                self.mixer = nn.Sequential(*convolutions)
            self.norm1, self.norm2 = nn.LayerNorm(channels, eps=1e-6), nn.LayerNorm(channels, eps=1e-6)
            self.fc1, self.fc2 = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

        def forward(self, z: Any) -> Any:
            x = z.flatten(2).mT
            if hasattr(self, "qkv"):
                parts = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
                mixed = self.proj(functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))
            else:
                mixed = self.mixer(z).flatten(2).mT
            x = self.norm1(x + mixed)
            return self.norm2(x + self.fc2(functional.gelu(self.fc1(x)))).mT.unflatten(2, z.shape[2:])

    class Downsample(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(channels, 2 * channels, 3, (2, 1), 1), nn.LayerNorm(2 * channels)

        def forward(self, z: Any) -> Any:
            return self.norm(self.conv(z).movedim(1, -1)).movedim(-1, 1)

    class Stage(nn.Module):
        def __init__(self, channels: int, kinds: str, last: bool) -> None:
            super().__init__()
            self.blocks = nn.Sequential(*[nn.Identity() if kind == "-" else Block(channels, kind) for kind in kinds])
            self.downsample = nn.Identity() if last else Downsample(channels)

        def forward(self, z: Any) -> Any:
            return self.downsample(self.blocks(z))

    class SVTR(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            first = STAGES[0][0]
            self.embed = nn.Sequential(
                nn.Conv2d(3, first // 2, 3, 2, 1), nn.GELU(), nn.Conv2d(first // 2, first, 3, 2, 1), nn.GELU()
            )
            self.stages = nn.Sequential(*[Stage(*stage, stage is STAGES[-1]) for stage in STAGES])
            self.classifier = nn.Linear(STAGES[-1][0], 19)
            self.num_classes = 0  # it returns features

        def forward(self, images: Any) -> Any:
            return self.stages(self.embed(images)).flatten(2).mT

    return SVTR().eval()


def build(path: Path) -> Any:
    """SVTRv2 with the weights of the file."""
    import torch

    inner = {f".{part}.": f".mlp.{part}." for part in ("fc1", "fc2")} | {
        f".{x}.": f".mixer.{x}." for x in ("qkv", "proj")
    }
    inner |= {f"embed.{2 * n}": f"encoder.pope.patch_embed.{n}.conv" for n in range(2)}
    inner |= {"stages": "encoder.stages", "classifier": "decoder.ctc_decoder.fc"}
    named = shipped.weights(path)
    network, state = create(), {}
    for name in network.state_dict():
        source = name
        for ours, theirs in inner.items():
            source = source.replace(ours, theirs)
        state[name] = torch.tensor(np.ascontiguousarray(named[source]))
    network.load_state_dict(state)
    return network


def normalised(images: UInt8[np.ndarray, "b h w"]) -> Float[np.ndarray, "b 3 h w"]:
    """Pixels as the network takes them, three equal channels from -1 to 1."""
    return np.repeat(images[:, None] / np.float32(127.5) - 1, 3, axis=1).astype(np.float32)


def prove(network: Any, path: Path, images: UInt8[np.ndarray, "b h w"]) -> list[float]:
    """By block of attention, the largest difference from ONNX Runtime's; UserError if large."""
    blocks = {
        f"/encoder/stages.{n}/blocks.{m}/norm2/LayerNormalization": stage.blocks[m].norm2
        for n, stage in enumerate(network.stages)
        for m, kind in enumerate(STAGES[n][1])
        if kind == "a"
    }
    pixels = np.repeat(images[:, None], 3, axis=1).astype(np.float32)
    return shipped.prove(network, path, blocks, {"input_image": pixels}, normalised(images))


def rows_of_digits(count: int) -> tuple[UInt8[np.ndarray, "b 64 256"], list[list[int]]]:
    """Rows of three of scikit-learn's digits, black on white, and which they are."""
    from sklearn.datasets import load_digits

    found, generator = load_digits(), np.random.default_rng(0)
    chosen = generator.integers(0, len(found.target), (count, DIGITS))
    images, top = np.full((count, HEIGHT, WIDTH), 255, np.uint8), (HEIGHT - SIDE) // 2
    for image, numbers in zip(images, chosen, strict=True):
        for place, n in enumerate(numbers):
            ink = Image.fromarray((255 / 16 * found.images[n]).astype(np.uint8))
            tile = np.asarray(ink.resize((SIDE, SIDE), Image.Resampling.BICUBIC))
            image[top : top + SIDE, 8 + place * SIDE : 8 + (place + 1) * SIDE] = 255 - tile
    return images, found.target[chosen].tolist()


def read(network: Any, classifier: Any, images: Float[np.ndarray, "b 3 h w"]) -> list[list[int]]:
    """Characters by CTC: the most probable of each patch, without repetitions and blanks (0); digit n is n + 1."""
    import torch

    with torch.inference_mode():
        best = classifier(network(torch.from_numpy(images))).argmax(dim=-1).numpy()
    changes = [row[np.flatnonzero(np.diff(row, prepend=-1))] for row in best]
    return [(row[row > 0] - 1).tolist() for row in changes]


def measure(out: Path) -> None:
    """Measures the network, and writes the record `svtr.json`."""
    import torch

    path = onnx_file()
    network = build(path)
    images, digits = rows_of_digits(READ)
    differences = prove(network, path, images[:4])
    print(f"hidden states differ from ONNX Runtime's by at most {max(differences):.1e}, relative", flush=True)
    pixels = normalised(images)

    def right(network: Any, classifier: Any) -> float:
        texts = [text for n in range(0, READ, 20) for text in read(network, classifier, pixels[n : n + 20])]
        return float(np.mean([text == true for text, true in zip(texts, digits, strict=True)]))

    record: dict[str, Any] = {"network": "svtr", "images": MEASURED, "read": READ, "differences": differences}
    record |= {"right": right(network, network.classifier), "layers": [], "heads": [], "curves": []}
    for layers, grid in PARTS:
        given = torch.from_numpy(pixels[:MEASURED])
        # The convolutions before blur the experiment that finds places: the order is that of `flatten`.
        tokens = np.arange(grid[0] * grid[1])
        report = attn_cnn_jax.inspect(network, given, layers=layers, grid=grid, tokens=tokens, kernel_size=(3, 5, 7))
        print(report, flush=True)
        record["layers"] += report.layers()
        record["heads"] += report.rows()
        total = len(report.rows())
        for count in (total // 2, total):
            row = {"grid": grid, "of": total, **report.curve([count])[0]}
            row["right"] = right(report.replaced_network(count), network.classifier)
            row["uniform"] = report.curve([count], instead="uniform")[0]["cosine"]
            record["curves"].append(row)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "svtr.json", json.dumps(record, indent=1) + "\n")


def tables(folder: Path) -> str:
    """Layers; shift heads; what replacing heads costs."""
    record = json.loads((folder / "svtr.json").read_text("utf-8"))
    none = {"grid": [8, 64], "heads": 0, "of": 12, "cosine": 1, "uniform": 1, "right": record["right"]}
    curves = [
        {
            "layers": "1 to 3" if row["grid"] == [8, 64] else "4 to 6",
            "heads replaced": f"{row['heads']} of {row['of']}",
            "cosine, 3x3 kernels": f"{row['cosine']:.3f}",
            "cosine, uniform attention": f"{row['uniform']:.3f}",
            f"rows of digits read right, of {record['read']} (%)": f"{100 * row['right']:.0f}",
        }
        for row in (none, *record["curves"])
    ]
    found = dinov2.layer_rows(record), dinov2.head_rows(record), curves
    return "\n".join(markdown(rows, tuple(rows[0])) for rows in found if rows)
