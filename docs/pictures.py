"""Draws the pictures of README.md and docs/ from a run, an included network and results/: `make pictures`.

    python docs/pictures.py [RUN|page]

RUN is runs/digits by default, which `make train` leaves; `page` draws viewer.png alone, the page in Chromium.
"""

import io
import sys
import tempfile
from pathlib import Path

from live_pages import write_pages
from PIL import Image
from selenium import webdriver

from attn_cnn_jax.cli.main import main as attn_cnn
from benchmarks.learn_convolution import main as learn_convolution
from benchmarks.records import reduce_colours

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results"
OF_THE_RUN = {
    "scheme_layer3": "scheme",
    "training_layer3": "training",
    "course": "course",
    "centres": "centres",
}
# Waits for the accuracy on all test images, and for the thumbnails.
COUNTED = """
const said = () => document.getElementById("accuracy").textContent;
const wait = (done) => setTimeout(() => (/…|of the first/.test(said()) ? wait(done) : done()), 500);
wait(arguments[0]);
"""


def main() -> int:
    run = sys.argv[1] if len(sys.argv) > 1 else "runs/digits"
    with tempfile.TemporaryDirectory() as folder:
        photograph(write_pages(Path(folder))[1], DOCS / "viewer.png")
        if run == "page":
            return 0
        drawn = Path(folder)
        status = attn_cnn(
            ["figures", run, "--figures=scheme,training,course,centres,span", "--layer=3", f"--out={folder}"]
        )
        if status:
            return status
        for name, target in (OF_THE_RUN | {"span_layer3": "span"}).items():
            reduce_colours(drawn / f"{name}.png", DOCS / f"{target}.png")
        attn_cnn(["figures", "pretrained:cifar10_maps16", "--figures=maps", f"--out={folder}"])
        reduce_colours(drawn / "maps_8_8.png", DOCS / "maps.png")
        joint = sorted(str(path) for path in (RESULTS / "digits").iterdir())
        attn_cnn(["figures", *joint, "--figures=curves", f"--out={folder}"])
        reduce_colours(drawn / "curves.png", DOCS / "curves.png")
        learn_convolution([f"--show={RESULTS / 'learn_convolution'}", "--write"])
    return 0


def photograph(page: Path, target: Path) -> None:
    """Writes the upper part of a page as it is at its first step, 1400 pixels wide."""
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--hide-scrollbars", "--window-size=1400,1000"):
        options.add_argument(flag)
    with webdriver.Chrome(options) as driver:
        metrics = {"width": 1400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        driver.get(f"{page.resolve().as_uri()}#step=1&picture=0")
        driver.execute_async_script(COUNTED)
        heads = "return Math.round(document.getElementById('heads').getBoundingClientRect().bottom)"
        upper = (0, 0, 1400, driver.execute_script(heads) + 8)
        Image.open(io.BytesIO(driver.get_screenshot_as_png())).crop(upper).convert("RGB").save(target, optimize=True)


if __name__ == "__main__":
    sys.exit(main())
