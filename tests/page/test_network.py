"""The network in the page: its logits are the model's, for every kind of network, and what it says can be seen."""

from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax.models.variables import join, split
from tests.page.browser import Page, emulated
from tests.page.conftest import random_run, written

pytestmark = pytest.mark.slow


def test_changes_are_the_models(probe, quadratic, probed):
    """Silencing is that of notebooks/restore_a_run.ipynb: a head's part of the value map is zero."""
    _, pixels, labels = probed
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
    for hash_, expected in {
        "": model(parameters)[0],
        "&off=1.2": model(parameters | {output: silent})[0],
        "&move=1.3:1:-0.5:1.5": model(parameters | moved)[0],
    }.items():
        page = probe(f"#picture=4{hash_}")
        np.testing.assert_allclose(page.logits(), expected[4], atol=1e-4, err_msg=hash_)
        page.wait(lambda page=page, now=bool(hash_): page.run("accuracy")["now" if now else "original"])
        counted = page.run("accuracy")["now" if hash_ else "original"]
        assert counted["right"] == int((np.asarray(expected).argmax(axis=1) == labels).sum()), hash_
        share = f"{100 * counted['right'] / len(labels):.1f}".removesuffix(".0")
        page.wait(lambda page=page, share=share: page.find("#accuracy").text.endswith(f" {share}%"))
    page.find("#reset").click()
    page.ready()
    _, found = model(parameters)
    for layer, activations in enumerate([found["embedding"], *(layer["output"] for layer in found["layers"])]):
        expected = quadratic.model.classifier(activations[4].mean(axis=(0, 1)))
        np.testing.assert_allclose(page.logits(layer), expected, atol=1e-4)


CHANGE = """
const [head, isCounting, done] = arguments;
if (isCounting) countRight();
choose({ off: new Set([head]) });
const awaited = [...answers.values()].filter(({ message }) => message.count).length;
requestAnimationFrame(() => requestAnimationFrame(() => done([$("accuracy").textContent, awaited])));
"""


def test_accuracy_is_never_that_of_an_earlier_change(probe):
    page = probe("#off=1.2")
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


def test_an_answer_that_failed_does_not_stop_the_network(probe):
    page = probe("#picture=3")
    assert page.driver.execute_async_script(FAIL_ONCE) == 3


def test_a_head_is_switched_off_and_dragged(probe):
    page = probe("#query=2,3&head=1,1&move=1.1:1:1:1")
    before = page.logits()
    for at, shown in (((0, 0), [0, 0]), ((3, 4), [2, 3])):  # elsewhere and on the handle of the centre
        page.point(*at).perform()
        assert page.view()["query"] == shown
    page.drag((3, 4), (1, 2))
    assert page.view()["query"] == [2, 3]
    np.testing.assert_allclose(page.view()["moved"]["0,0"]["centre"], [-1, -1], atol=0.1)
    assert np.abs(np.subtract(page.logits(), before)).max() > 1e-3
    page.find("#head-on").click()
    assert page.view()["off"] == ["0,0"]
    assert "off" in page.all(".head")[0].get_attribute("class")
    assert [head.get_attribute("aria-label") for head in page.all(".head")[:2]] == [
        "Layer 1, head 1, off",
        "Layer 1, head 2",
    ]
    page.find("#head-on").click()
    assert page.view()["off"] == []


def test_saving_makes_a_figure(probe):
    page = probe("#head=1,1&tiles=map")
    svg = ElementTree.fromstring(page.run("figureSvg()"))
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(svg.findall("{*}image")) == 1 + 1 + 6  # the picture, the ramp of colours, and all heads
    text = page.run("figureSvg()")
    assert "heads moved" not in text
    assert text.count('fill="none"') == 2 * 6 + 1  # a frame and the query on each tile, and the chosen head's frame
    assert "from 0 to head’s largest" in text
    page.run("choose({ softmax: false, moved: { '0,0': { centre: [1, 1], factor: 2 } } })")
    text = page.run("figureSvg()")
    assert "heads moved" in text
    assert "scores" in text
    assert page.driver.execute_async_script("pngAddress().then((address) => arguments[0](address.length))") > 1000


@pytest.mark.parametrize(("classes", "shown"), [(12, 12), (13, 10)])
def test_the_most_probable_of_many_classes_are_shown(quiet, pictures, tmp_path, classes, shown):
    run = random_run(encoding="quadratic", num_classes=classes)
    page = Page(quiet, written(run, pictures, tmp_path / "page.html")).open()
    probabilities = jax.nn.softmax(np.array(page.logits()))
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
def test_the_page_computes_without_a_worker(quiet, probe, quadratic, probed, worker):
    _, pixels, _ = probed
    script = quiet.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": worker})
    try:
        page = probe("#picture=1")
        expected = quadratic.model(quadratic.normalised(pixels[1:2]))[0][0]
        np.testing.assert_allclose(page.logits(), expected, atol=1e-4)
    finally:
        quiet.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_nothing_serious_for_axe(quiet, probe, scheme, width):
    axe = pytest.importorskip("axe_core_python.selenium", reason="axe-core-python is not installed")
    with emulated(quiet, width, prefers_color_scheme=scheme):
        page = probe("#head=1,2&off=1.1")
        assert page.run("document.documentElement.scrollWidth") <= width
        violations = [v for v in axe.Axe().run(quiet)["violations"] if v["impact"] in ("serious", "critical")]
        assert [(v["id"], [node["html"][:120] for node in v["nodes"]]) for v in violations] == []
