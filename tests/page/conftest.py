"""Small untrained networks of every encoding, their pages, and a headless Chromium to open them in."""

import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax.config import attention_config, create_model, validate
from attn_cnn_jax.config.network import abstract_model
from attn_cnn_jax.models.attention.shifts import relative_positions
from attn_cnn_jax.models.encodings import REGISTRY, Encoding, register
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.page.build import image_entries, page_data
from attn_cnn_jax.page.images import LabelledImage
from attn_cnn_jax.page.network import network_data, reason_not_to_compute
from attn_cnn_jax.page.render import render
from attn_cnn_jax.runs.run import Run
from tests.page.browser import Page

GRID = (5, 7)  # not square, so that rows and columns can't be mixed up
NETWORKS = {
    "quadratic": {"encoding": "quadratic", "num_heads": (3, 1)},  # as after pruning
    "learned": {"encoding": "learned"},
    "learned_content": {"encoding": "learned", "content": True},
    "landmark": {"encoding": "landmark"},
}


class Euclidean(Encoding):
    """An encoding of one's own whose score is no row plus column score: minus the distance, times the head's number."""

    head_axis = {"slope": 0}

    def __init__(self, num_heads):
        self.slope = nnx.Param(0.5 * jnp.arange(1, num_heads + 1, dtype=jnp.float32))

    @classmethod
    def create(cls, sizes, *, rngs, tables=None, **options):
        return cls(sizes.num_heads)

    def position_terms(self, height, width, query_rows):
        row = relative_positions(query_rows, height)[:, None, :, None]
        column = relative_positions(jnp.arange(width), width)[None, :, None, :]
        distance = jnp.sqrt((row**2 + column**2).astype(jnp.float32))
        return {"position": -self.slope[...][:, None, None, None, None] * distance[None]}


class Landmark(Euclidean):
    """One whose scores depend on more than the shift: keys of the first row stand out, and none is 4 columns away."""

    def position_terms(self, height, width, query_rows):
        heads, queries = len(self.slope[...]), len(query_rows)
        first_row = (jnp.arange(height) == 0).astype(jnp.float32)[None, None, None, :, None]
        near = jnp.abs(relative_positions(jnp.arange(width), width)) < 4
        shape = heads, queries, width, height, width
        return {
            "first_row": jnp.broadcast_to(self.slope[...][:, None, None, None, None] * first_row, shape),
            "window": jnp.broadcast_to(jnp.where(near, 0, -jnp.inf)[None, None, :, None, :], shape),
        }


@pytest.fixture(scope="session", autouse=True)
def own_encodings():
    """Registers these encodings for the tests of this folder."""
    register("distance")(Euclidean)
    register("landmark")(Landmark)
    yield
    REGISTRY.pop("distance")
    REGISTRY.pop("landmark")


HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">.png'


@pytest.fixture(scope="session")
def runs(own_encodings):
    """Untrained runs by name."""
    return {name: create_run(**model) for name, model in NETWORKS.items()}


def small_config(**model):
    """Two layers of two heads over a few pixels."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_layers": 2, "num_heads": 2}
    return attention_config(**({"image_shape": (GRID[0] * 2, GRID[1] * 2, 3)} | sizes | model))


def create_run(**model):
    config = small_config(**model)
    validate(config)
    return Run(config, 40, create_model(config.model, rngs=nnx.Rngs(3)))


@pytest.fixture(scope="session")
def pictures():
    """Two pictures of noise; the second one's name is an attack."""
    pixels = np.random.default_rng(0).integers(0, 256, (2, GRID[0] * 2, GRID[1] * 2, 3), np.uint8)
    return [LabelledImage(pixels[0], "test 0", "frog"), LabelledImage(pixels[1], HOSTILE, HOSTILE)]


@pytest.fixture(scope="session")
def pages(runs, pictures, tmp_path_factory):
    """Page data by network, and the HTML file each was written to."""
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name, run in runs.items():
        size = tuple(run.config.model.image_shape[:2])
        data = page_data(run, size, title=f"Heads of {HOSTILE}")
        data["epochs"] = course(run)
        data["pictures"] = image_entries(run, pictures, ())
        if run.model.depends_on_content:
            data["network"] = network_data(run, GRID, ())
        found[name] = data, folder / f"{name}.html"
        found[name][1].write_text(render(data), "utf-8")
    return found


def course(run):
    """Three made-up epochs of a quadratic or learned network, the last one the network itself; nothing for others."""
    if run.config.model.encoding not in ("quadratic", "learned"):
        return []
    kind, spread = ("quadratic", 3) if run.config.model.encoding == "quadratic" else ("gaussian", [[3, 0], [0, 3]])

    def layer(heads, epoch):
        shown = {"centre": [[0, epoch]] * heads, "spread": [spread] * heads}
        return {"position": {"term": "position", "kind": kind} | shown}

    heads = [block.attention.num_heads for block in run.model.blocks]
    return [{"epoch": epoch, "layers": [layer(h, epoch) for h in heads]} for epoch in (1, 2, 3)]


@pytest.fixture(scope="session")
def attention(runs, pictures):
    """The model's own probabilities: `attention(name, picture)[layer]` is `(h, i, j, k, l)`."""
    images = np.stack([picture.pixels for picture in pictures])

    def of(name, picture=0):
        run = runs[name]
        layers = run.attention(images)
        return [layer[picture] for layer in layers] if run.model.depends_on_content else layers

    return of


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
def page(quiet, pages):
    """`page(name)` opens a network's page."""
    return lambda name, address="": Page(quiet, pages[name][1]).open(address)


def random_run(seed=0, **model):
    """A run whose parameters are all large and random, so that no term or head is negligible."""
    config = small_config(**model)
    validate(config)
    skeleton, parameters, statistics = split(abstract_model(config.model))
    random = np.random.default_rng(seed)
    drawn = {
        name: jnp.asarray(random.normal(size=x.shape) / (x.shape or (1,))[0] ** 0.5, x.dtype)
        for name, x in parameters.items()
    }
    seen = {name: jnp.asarray(random.uniform(0.5, 2, x.shape), x.dtype) for name, x in statistics.items()}
    return Run(config, 40, join(skeleton, drawn, seen))


def written(run, pictures, path, class_names=()):
    """Writes the page of a run, which computes, and returns its path; with class names the pictures count as a test."""
    data = page_data(run, tuple(run.config.model.image_shape[:2]), title="a network")
    grid = tuple(data["grid"])
    assert reason_not_to_compute(run, grid) is None
    data["network"] = network_data(run, grid, class_names, pictures if class_names else ())
    data["pictures"] = image_entries(run, pictures, class_names)
    path.write_text(render(data), "utf-8")
    return path


@pytest.fixture(scope="session")
def quadratic():
    """A quadratic network of three heads a layer."""
    return random_run(1, encoding="quadratic", num_heads=3)


@pytest.fixture(scope="session")
def probed(quadratic, tmp_path_factory):
    """The page of `quadratic`, with labelled pictures, and the pictures."""
    random = np.random.default_rng(5)
    pixels = random.integers(0, 256, (12, GRID[0] * 2, GRID[1] * 2, 3), np.uint8)
    names = tuple(str(n) for n in range(10))
    predicted = np.asarray(quadratic.predict(pixels)).argmax(axis=1)
    pictures = [LabelledImage(x, f"test {n}", names[predicted[n] if n % 3 else 0]) for n, x in enumerate(pixels)]
    path = written(quadratic, pictures, tmp_path_factory.mktemp("page") / "page.html", names)
    return path, pixels, np.array([int(picture.label) for picture in pictures])


@pytest.fixture
def probe(quiet, probed):
    """`probe(address)` opens that page."""
    return lambda address="": Page(quiet, probed[0]).open(address)
