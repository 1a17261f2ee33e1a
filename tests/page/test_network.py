"""The network in the page: its logits are the model's, for every kind of network, and what it says can be seen."""

from xml.etree import ElementTree

import jax.numpy as jnp
import numpy as np
import pytest

from tests.page.browser import emulated

pytestmark = pytest.mark.slow


def test_changes_are_those_of_a_run(open_page, quadratic, images, labels):
    centre = quadratic.model.blocks[0].attention.position.centre[...].at[2].set(jnp.array([1.0, -0.5]))
    runs = {
        "": quadratic,
        "&off=1.2": quadratic.without_heads([(0, 1)]),
        "&move=1.3:1:-0.5:1": quadratic.with_centres([centre, None]),
    }
    page = open_page("#picture=4")
    for hash_, run in runs.items():
        address = f"#picture=4&query=2,3{hash_}"
        page.run(f"void (location.hash = '{address}')")
        page.wait(lambda address=address: page.run("viewToHash()") == address)
        page.ready()
        np.testing.assert_allclose(page.logits(), run.logits(images)[4], atol=1e-4, err_msg=hash_)
        kind, right = "now" if hash_ else "original", run.evaluate(images, labels).right
        page.wait(lambda kind=kind: page.run(f"accuracy.{kind}?.of") == len(images))
        assert page.run(f"accuracy.{kind}.right") == right, hash_
        share = f"{100 * right / len(labels):.1f}".removesuffix(".0")
        page.wait(lambda share=share: page.find("#accuracy").text.endswith(f" {share}%"))
    page.find("#reset").click()
    page.ready()
    found = quadratic.intermediates(images[4:5])
    for layer, activations in enumerate([found["embedding"], *(layer["output"] for layer in found["layers"])]):
        expected = quadratic.model.classifier(jnp.asarray(activations[0].mean(axis=(0, 1))))
        np.testing.assert_allclose(page.logits(layer), expected, atol=1e-4)


FAIL_ONCE = """
const done = arguments[0], real = ask;
ask = () => { throw new Error("once"); };
classify().catch(() => {
  ask = real;
  classified = null;
  classify().then(() => done(classified.picture));
});
"""


CHANGE = """
const [head, isCounting, done] = arguments;
if (isCounting) countRight();
choose({ off: new Set([head]) });
const awaited = [...answers.values()].filter(({ message }) => message.count).length;
requestAnimationFrame(() => requestAnimationFrame(() => done([$("accuracy").textContent, awaited])));
"""


def test_accuracy_is_never_that_of_an_earlier_change(open_page):
    page = open_page("#picture=3&off=1.2")
    page.wait(lambda: page.run("accuracy.now"))
    assert page.find("#accuracy").text.endswith("%")
    for head, is_counting in (("1,0", False), ("0,2", True)):
        text, awaited = page.driver.execute_async_script(CHANGE, head, is_counting)
        assert text.endswith("…")
        assert awaited == 0  # no count of the earlier change
        page.wait(lambda: page.run("accuracy.now"))
    assert page.run("answers.size") == 0
    assert page.driver.execute_async_script(FAIL_ONCE) == 3  # an answer that failed does not stop the network


def test_a_head_is_switched_off_and_dragged(open_page):
    page = open_page("#query=2,3&head=1,1&move=1.1:1:1:1")
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


def test_saving_makes_a_figure(open_page):
    page = open_page("#head=1,1&tiles=map")
    svg = ElementTree.fromstring(page.run("figureSvg()"))
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(svg.findall("{*}image")) == 1 + 1 + 4  # the picture, the ramp of colours, and all heads
    text = page.run("figureSvg()")
    assert "heads moved" not in text
    assert text.count('fill="none"') == 2 * 4 + 1  # a frame and the query on each tile, and the chosen head's frame
    assert "from 0 to head’s largest" in text
    page.run("choose({ softmax: false, moved: { '0,0': { centre: [1, 1], factor: 2 } } })")
    text = page.run("figureSvg()")
    assert "heads moved" in text
    assert "scores" in text
    assert page.driver.execute_async_script("pngAddress().then((address) => arguments[0](address.length))") > 1000


@pytest.mark.parametrize(
    "worker",
    ["delete window.Worker", "window.Worker = class { postMessage() { setTimeout(() => this.onerror?.(), 5); } }"],
    ids=["none", "refused later"],
)
def test_the_page_computes_without_a_worker(quiet, open_page, quadratic, images, worker):
    script = quiet.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": worker})
    try:
        page = open_page("#picture=1")
        np.testing.assert_allclose(page.logits(), quadratic.logits(images[1:2])[0], atol=1e-4)
    finally:
        quiet.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_nothing_serious_for_axe(quiet, open_page, scheme, width):
    axe = pytest.importorskip("axe_core_python.selenium", reason="axe-core-python is not installed")
    with emulated(quiet, width, prefers_color_scheme=scheme):
        page = open_page("#head=1,2&off=1.1")
        assert page.run("document.documentElement.scrollWidth") <= width
        violations = [v for v in axe.Axe().run(quiet)["violations"] if v["impact"] in ("serious", "critical")]
        assert [(v["id"], [node["html"][:120] for node in v["nodes"]]) for v in violations] == []
