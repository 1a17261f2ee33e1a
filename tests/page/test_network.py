"""The network in the page: its logits are the model's, for every kind of network, and what it says can be seen."""

from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax.config import validate
from attn_cnn_jax.config.network import abstract_model
from attn_cnn_jax.models.encodings import REGISTRY, encoding_class
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.page.build import image_entries, page_data
from attn_cnn_jax.page.images import LabelledImage
from attn_cnn_jax.page.network import network_data, reason_not_to_compute
from attn_cnn_jax.page.render import render, write
from attn_cnn_jax.runs.run import Run
from tests.page.browser import ActionChains, Page, emulated
from tests.page.conftest import GRID, small_config

pytestmark = pytest.mark.slow
KINDS = [
    (encoding, content, gate)
    for encoding in sorted(REGISTRY)
    for content, gate in ((False, False), (True, False), (True, True))
    if encoding_class(encoding).accepts_content() or not content
]


def random_run(seed=0, **model):
    """A run whose parameters are all large and random, so that no term or head is negligible."""
    config = small_config(**model)
    validate(config)
    skeleton, parameters, statistics = split(abstract_model(config.model))
    random = np.random.default_rng(seed)
    drawn = {
        name: jnp.asarray(random.normal(size=x.shape) / x.shape[0] ** 0.5, x.dtype) for name, x in parameters.items()
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
    write(path, render(data))
    return path


@pytest.fixture(scope="module")
def quadratic():
    """A quadratic network of three heads a layer."""
    return random_run(1, encoding="quadratic", num_heads=3)


@pytest.fixture(scope="module")
def probed(quadratic, tmp_path_factory):
    """The page of `quadratic`, with labelled pictures, and the pictures."""
    random = np.random.default_rng(5)
    pixels = random.integers(0, 256, (12, GRID[0] * 2, GRID[1] * 2, 3), np.uint8)
    names = tuple(str(n) for n in range(10))
    predicted = np.asarray(quadratic.predict(pixels)).argmax(axis=1)
    pictures = [LabelledImage(x, f"test {n}", names[predicted[n] if n % 3 else 0]) for n, x in enumerate(pixels)]
    path = written(quadratic, pictures, tmp_path_factory.mktemp("page") / "page.html", names)
    return path, pixels, np.array([int(picture.label) for picture in pictures])


def test_changes_are_the_models(quiet, quadratic, probed):
    """Silencing is that of notebooks/restore_a_run.ipynb: a head's part of the value map is zero."""
    path, pixels, labels = probed
    skeleton, parameters, statistics = split(quadratic.model)
    output, centre, spread = (
        f"blocks.0.attention.{name}" for name in ("output.kernel", "position.centre", "position.spread")
    )
    kernel = parameters[output]
    silent = kernel.reshape(3, -1, kernel.shape[1]).at[1].set(0).reshape(kernel.shape)
    moved = {
        centre: parameters[centre].at[2].set(jnp.array([1.0, -0.5])),
        spread: parameters[spread].at[2].multiply(1.5),
    }
    x = quadratic.normalised(pixels)
    model = jax.jit(lambda parameters: join(skeleton, parameters, statistics)(x))
    without = quadratic.model.classifier(quadratic.model.blocks[1](model(parameters)[1]["embedding"]).mean(axis=(1, 2)))
    for hash_, expected in {
        "": model(parameters)[0],
        "&off=1.2": model(parameters | {output: silent})[0],
        "&move=1.3:1:-0.5:1.5": model(parameters | moved)[0],
        "&skip=1": without,
    }.items():
        page = Page(quiet, path).open(f"#picture=4{hash_}")
        np.testing.assert_allclose(page.run("viewer.logits()"), expected[4], atol=1e-4, err_msg=hash_)
        page.wait(lambda page=page, now=bool(hash_): page.run("viewer.accuracy()")["now" if now else "original"])
        counted = page.run("viewer.accuracy()")["now" if hash_ else "original"]
        assert counted["right"] == int((np.asarray(expected).argmax(axis=1) == labels).sum()), hash_
        share = f"{100 * counted['right'] / len(labels):.1f}".removesuffix(".0")
        page.wait(lambda page=page, share=share: page.find("#accuracy").text.endswith(f" {share}%"))
    page.find("#reset").click()
    page.ready()
    np.testing.assert_allclose(page.run("viewer.logits()"), model(parameters)[0][4], atol=1e-4)


CHANGE = """
const [head, isCounting, done] = arguments;
if (isCounting) countRight();
choose({ off: new Set([head]) });
const awaited = [...answers.values()].filter(({ message }) => message.count).length;
requestAnimationFrame(() => requestAnimationFrame(() => done([$("accuracy").textContent, awaited])));
"""


def test_accuracy_is_never_that_of_an_earlier_change(quiet, probed):
    page = Page(quiet, probed[0]).open("#off=1.2")
    page.wait(lambda: page.run("accuracy.now"))
    assert page.find("#accuracy").text.endswith("%")
    for head, is_counting in (("1,0", False), ("0,2", True)):
        text, awaited = page.driver.execute_async_script(CHANGE, head, is_counting)
        assert text.endswith("…")
        assert awaited == 0  # no count of the earlier change
        page.wait(lambda: page.run("accuracy.now"))
    assert page.run("answers.size") == 0


FAIL_ONCE = """
const done = arguments[0], real = ask;
ask = () => { throw new Error("once"); };
classify().catch(() => {
  ask = real;
  classified = null;
  classify().then(() => done(classified.picture));
});
"""


def test_an_answer_that_failed_does_not_stop_the_network(quiet, probed):
    page = Page(quiet, probed[0]).open("#picture=3")
    assert page.driver.execute_async_script(FAIL_ONCE) == 3


def test_prediction_after_each_layer(quiet, quadratic, probed):
    path, pixels, _ = probed
    page = Page(quiet, path).open("#picture=2")
    _, found = quadratic.model(quadratic.normalised(pixels[2:3]))
    activations = [found["embedding"], *(layer["output"] for layer in found["layers"])]
    for layer, x in enumerate(activations):
        expected = quadratic.model.classifier(x.mean(axis=(1, 2)))[0]
        np.testing.assert_allclose(page.run("viewer.logits(arguments[0])", layer), expected, atol=1e-4)


def test_a_head_is_switched_off_and_dragged(quiet, probed):
    page = Page(quiet, probed[0]).open("#query=2,3&head=1,1&move=1.1:1:1:1")
    before = page.run("viewer.logits()")
    for at, shown in (((0, 0), [0, 0]), ((3, 4), [2, 3])):  # elsewhere and on the handle of the centre
        ActionChains(quiet, duration=0).move_to_element_with_offset(page.find("#picture"), *place(page, *at)).perform()
        assert page.view()["query"] == shown
    ActionChains(quiet, duration=0).move_to_element_with_offset(
        page.find("#picture"), *place(page, 3, 4)
    ).click_and_hold().move_to_element_with_offset(page.find("#picture"), *place(page, 1, 2)).release().perform()
    page.ready()
    assert page.view()["query"] == [2, 3]
    np.testing.assert_allclose(page.view()["moved"]["0,0"]["centre"], [-1, -1], atol=0.1)
    assert np.abs(np.subtract(page.run("viewer.logits()"), before)).max() > 1e-3
    page.find("#head-on").click()
    assert page.view()["off"] == ["0,0"]
    assert "off" in page.all(".head")[0].get_attribute("class")
    assert [head.get_attribute("aria-label") for head in page.all(".head")[:2]] == [
        "Layer 1, head 1, off",
        "Layer 1, head 2",
    ]
    page.find("#head-on").click()
    page.all(".layer-on")[1].click()
    assert (page.view()["off"], page.view()["skipped"]) == ([], [1])


def place(page, row, column):
    """A pixel's middle, as an offset from the middle of the picture."""
    size = page.find("#picture").rect
    return (
        round(((column + 0.5) / GRID[1] - 0.5) * size["width"]),
        round(((row + 0.5) / GRID[0] - 0.5) * size["height"]),
    )


def test_saving_makes_a_figure(quiet, probed):
    page = Page(quiet, probed[0]).open("#head=1,1")
    svg = ElementTree.fromstring(page.run("viewer.figureSvg()"))
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(svg.findall("{*}image")) == 1 + 6  # the picture and all heads
    assert "heads moved" not in page.run("viewer.figureSvg()")
    page.run("choose({ softmax: false, moved: { '0,0': { centre: [1, 1], factor: 2 } } })")
    text = page.run("viewer.figureSvg()")
    assert "heads moved" in text
    assert "scores" in text
    assert page.driver.execute_async_script("viewer.figurePng().then(arguments[0])") > 1000


@pytest.mark.parametrize(("classes", "shown"), [(12, 12), (13, 10)])
def test_the_most_probable_of_many_classes_are_shown(quiet, pictures, tmp_path, classes, shown):
    run = random_run(encoding="quadratic", num_classes=classes)
    page = Page(quiet, written(run, pictures, tmp_path / "page.html")).open()
    probabilities = jax.nn.softmax(np.array(page.run("viewer.logits()")))
    names = [row.text.split() for row in page.all("#bars li")]
    assert len(names) == len(page.all("#lens-rows tr:first-child td")) - 1 == shown
    largest = np.argsort(-probabilities)[:shown]
    assert {int(number) for _, number, _ in names} == set(largest.tolist())
    assert names[0][2] == f"{100 * probabilities[int(names[0][1])]:.0f}%" or names[0][2] == "<1%"


@pytest.mark.parametrize(
    "worker",
    ["delete window.Worker", "window.Worker = class { postMessage() { setTimeout(() => this.onerror?.(), 5); } }"],
    ids=["none", "refused later"],
)
def test_the_page_computes_without_a_worker(quiet, quadratic, probed, worker):
    path, pixels, _ = probed
    script = quiet.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": worker})
    try:
        page = Page(quiet, path).open("#picture=1")
        expected = quadratic.model(quadratic.normalised(pixels[1:2]))[0][0]
        np.testing.assert_allclose(page.run("viewer.logits()"), expected, atol=1e-4)
    finally:
        quiet.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_serious_for_axe(quiet, probed, scheme, width):
    axe = pytest.importorskip("axe_core_python.selenium", reason="axe-core-python is not installed")
    with emulated(quiet, width, scheme):
        for hash_ in ("#head=1,2", "#layer=2&off=1.1"):
            page = Page(quiet, probed[0]).open(hash_)
            assert page.run("document.documentElement.scrollWidth") <= width
            violations = axe.Axe().run(quiet)["violations"]
            grave = [(v["id"], [node["html"][:120] for node in v["nodes"]]) for v in violations if v["impact"] in GRAVE]
            assert grave == [], hash_


GRAVE = ("serious", "critical")
