"""Small networks with random parameters, their pages, and a headless Chromium to open them in."""

import dataclasses
import functools
import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax.config import attention_config, validate
from attn_cnn_jax.config.network import abstract_model
from attn_cnn_jax.data import sets
from attn_cnn_jax.data.image_files import LabelledImage
from attn_cnn_jax.models.attention.shifts import relative_positions
from attn_cnn_jax.models.encodings import REGISTRY, Encoding, register
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.page.build import build
from attn_cnn_jax.runs.run import Run
from tests.page.browser import GRID, Page

SIZE = (2 * GRID[0], 2 * GRID[1])
CLASSES = tuple("0123456789")
HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">.png'
NETWORKS = {
    "quadratic": {"encoding": "quadratic", "num_heads": (3, 1)},  # as after pruning
    "learned": {"encoding": "learned"},
    "learned_content": {"encoding": "learned", "content": True},
    "landmark": {"encoding": "landmark"},
}


class Landmark(Encoding):
    """Scores that depend on more than the shift: keys of the first row stand out, and none is 4 columns away."""

    head_axis = {"slope": 0}

    def __init__(self, num_heads):
        self.slope = nnx.Param(jnp.ones(num_heads))

    @classmethod
    def create(cls, sizes, *, rngs, tables=None, **options):
        return cls(sizes.num_heads)

    def position_terms(self, height, width, query_rows):
        shape = len(self.slope[...]), len(query_rows), width, height, width
        first_row = (jnp.arange(height) == 0).astype(jnp.float32)[None, None, None, :, None]
        near = jnp.abs(relative_positions(jnp.arange(width), width)) < 4
        return {
            "first_row": jnp.broadcast_to(jnp.abs(self.slope[...])[:, None, None, None, None] * first_row, shape),
            "window": jnp.broadcast_to(jnp.where(near, 0, -jnp.inf)[None, None, :, None, :], shape),
        }


@pytest.fixture(scope="session", autouse=True)
def landmark():
    """Registers this encoding of one's own for the tests of this folder."""
    register("landmark")(Landmark)
    yield
    REGISTRY.pop("landmark")


def random_run(seed=0, **model):
    """Two layers of two heads over a few pixels, with parameters so large that no term or head is negligible."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_layers": 2, "num_heads": 2}
    config = attention_config(**({"image_shape": (*SIZE, 3)} | sizes | model))
    validate(config)
    skeleton, parameters, statistics = split(abstract_model(config.model))
    random = np.random.default_rng(seed)
    drawn = {
        name: jnp.asarray(random.normal(size=x.shape) / (x.shape or (1,))[0] ** 0.5, x.dtype)
        for name, x in parameters.items()
    }
    seen = {name: jnp.asarray(random.uniform(0.5, 2, x.shape), x.dtype) for name, x in statistics.items()}
    return Run(config, 40, join(skeleton, drawn, seen))


@pytest.fixture(scope="session")
def runs(landmark):
    """Runs by name; of the first two with made-up records of three epochs, the last one at the checkpoint."""
    found = {name: random_run(1, **model) for name, model in NETWORKS.items()}
    for name, kind, spread in ("quadratic", "spread", 3.0), ("learned", "covariance", (np.eye(2) / 9).tolist()):
        records = []
        for epoch in (1, 2, 3):
            heads = [block.attention.num_heads for block in found[name].model.blocks]
            layers = [{"centre": [[0, epoch]] * n, kind: [spread] * n} for n in heads]
            records.append({"step": 10 + 10 * epoch, "epoch": epoch, "layers": layers})
        found[name] = dataclasses.replace(found[name], positions=records)
    return found


@pytest.fixture(scope="session")
def quadratic(runs):
    return runs["quadratic"]


@pytest.fixture(scope="session")
def images():
    """Twelve images of noise."""
    return np.random.default_rng(5).integers(0, 256, (12, *SIZE, 3), np.uint8)


@pytest.fixture(scope="session")
def labels(quadratic, images):
    """Their labels: of two thirds as the quadratic network predicts them, else 0."""
    predicted = quadratic.predict(images).argmax(axis=1)
    return np.where(np.arange(12) % 3, predicted, 0)


def dataset_of(images, labels, class_names=CLASSES):
    """A data set with these test images."""
    test = sets.Split(images, np.asarray(labels))
    return sets.Dataset(test, test, dataclasses.replace(sets.SPECS["cifar10"], class_names=class_names))


def written(run, path, pictures=(), dataset=None, **options):
    """Writes the page of a run and returns its path."""
    size = tuple(run.config.model.image_shape[:2])
    path.write_text(build(run, list(pictures), dataset, size, title=f"Heads of {HOSTILE}", **options), "utf-8")
    return path


@pytest.fixture(scope="session")
def pages(runs, images, labels, tmp_path_factory):
    """`pages(name)`: a network's page. Two of them show attention alone; the second image's name is an attack."""
    folder, dataset = tmp_path_factory.mktemp("pages"), dataset_of(images, labels)
    pictures = [
        LabelledImage(image, HOSTILE if n == 1 else f"test {n}", CLASSES[label])
        for n, (image, label) in enumerate(zip(images, labels, strict=True))
    ]

    @functools.cache
    def page_of(name):
        most = 0 if name in ("learned", "landmark") else 10**6
        return written(runs[name], folder / f"{name}.html", pictures, dataset, most_parameters=most)

    return page_of


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """Chromium without a window; tests that need it are skipped where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    chromedriver = shutil.which("chromedriver")
    if not browser or not chromedriver:
        pytest.skip("no Chromium with chromedriver found (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    flags = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-sync"
    for flag in (*flags.split(), "disable-component-update", "window-size=1280,900"):
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    yield started
    started.quit()


@pytest.fixture
def quiet(chromium):
    """The browser; afterwards its pages must have said nothing wrong and asked for nothing."""
    for log in ("browser", "performance"):
        chromium.get_log(log)
    yield chromium
    assert chromium.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in chromium.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert urls
    allowed = ("file:", "data:", "blob:", "about:", "chrome:")  # the last is Chromium's own first page
    assert [url for url in urls if not url.startswith(allowed)] == []


@pytest.fixture
def open_page(quiet, pages):
    """`open_page(address, name)` opens a network's page."""
    return lambda address="", name="quadratic": Page(quiet, pages(name)).open(address)
