"""The way from attention to convolution: shifted images, five steps, layers replaced, and the figure by itself."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax import reference
from attn_cnn_jax.analysis.convolution import kernel_of, replace_first, substitutes
from attn_cnn_jax.data.image_files import LabelledImage
from attn_cnn_jax.page.network import costliest_head
from tests.page.browser import Keys, Page, emulated
from tests.page.conftest import CLASSES, GRID, random_run, written

pytestmark = pytest.mark.slow


def test_tiles_show_the_image_as_heads_hand_it_on(open_page, quadratic, images):
    """`sum_p A[q, p] image[p]` for squares of 2x2 pixels."""
    page = open_page("#picture=3")
    squares = images[3].reshape(GRID[0], 2, GRID[1], 2, 3).astype(float)
    for layer, attention in enumerate(quadratic.attention()):
        for head, weights in enumerate(attention):
            expected = np.einsum("ijkl,kylxc->iyjxc", weights, squares).ravel()
            shifted = page.run(f"Array.from(answered.shifted[{layer}][{head}])")
            np.testing.assert_allclose(shifted, expected, atol=0.51)
            np.testing.assert_array_equal(page.drawn(layer, head).ravel(), shifted)


def test_layers_become_the_convolutions_of_the_command(open_page, quadratic, images, labels):
    """Logits and accuracy of `attn-cnn convolution`, zeros beyond the border; and the maps of the kernel."""
    x = quadratic.normalised(images)
    page = open_page("#picture=4")
    for layers, size in ((1, 1), (1, 3), (2, 5), (2, 9)):
        kernel = kernel_of(size, size, GRID)
        found = [substitutes(jnp.asarray(layer), kernel)[0] for layer in quadratic.attention()]
        attention = [of_layer["zeros"] for of_layer in found]
        expected = reference.evaluate(replace_first(quadratic.model, attention[:layers]), x)[0]
        page.run(f"choose({{ convolved: {{ layers: {layers}, size: {size} }} }})")
        page.ready()
        np.testing.assert_allclose(page.logits(), expected[4], atol=1e-4, err_msg=f"{layers} {size}")
        np.testing.assert_allclose(page.probabilities(layers - 1, 0), attention[layers - 1][0, 2, 3], atol=1e-6)
        page.wait(lambda: page.run("accuracy.now?.of") == len(labels))
        assert page.run("accuracy.now.right") == int((expected.argmax(axis=1) == labels).sum())
        own = [of_layer["truncated"] for of_layer in found]
        inside = reference.evaluate(replace_first(quadratic.model, own[:layers]), x)[0].argmax(axis=1) == labels
        page.wait(lambda: page.run("accuracy.truncated"))
        assert page.run("accuracy.truncated.right") == inside.sum()
    page.wait(lambda: page.driver.current_url.endswith("&conv=2x9"))
    page.find("#reset").click()
    assert page.run("view.convolved.layers") == 0
    counted = "accuracy.original = { right: 15, of: 20 }, network.test.labels.length = 30"
    text = page.run(f"({counted}, showAccuracy(), $('accuracy').textContent)")
    assert text == "Accuracy on 30 test images: 15 of the first 20"
    right = "original: { right: 30, of: 30 }, truncated: { right: 27, of: 30 }, now: { right: 12, of: 30 }"
    changes = f"Object.assign(accuracy, {{ {right} }}), view.convolved.layers = 1"
    text = page.run(f"({changes}, showAccuracy(), $('accuracy').textContent)")
    assert text.endswith("100% → 40% (lost outside the kernel 10, by zeros at the border 50)")


def test_five_steps(quiet, open_page):
    page = open_page()
    for word in ("head", "query", "convolution"):
        assert word in [element.text for element in page.all("#lead dfn")]
    steps = page.all("#steps button")
    assert len(steps) == 5
    assert page.view()["step"] == 0
    assert "heads of layer 1 look from here" in page.find("#overlay-text").text
    steps[2].click()
    page.ready()
    assert page.view()["convolved"] == {"layers": 1, "size": 3}
    page.keys(Keys.ARROW_RIGHT)
    view = page.view()
    assert (view["step"], view["head"][0], view["convolved"]["layers"]) == (3, 0, 0)
    page.keys(Keys.ARROW_RIGHT)
    page.wait(lambda: "step=5" in page.driver.current_url)
    costliest = page.run("network.costliest")
    assert page.view()["off"] == [f"0,{costliest}"]
    assert f"Head {costliest + 1} of layer 1 is off" in steps[4].text
    assert steps[4].get_attribute("aria-pressed") == "true"
    page.find("#head-on").click()
    assert page.view()["step"] is None  # no longer what the step shows
    page.open("#step=3")
    assert page.view()["convolved"] == {"layers": 1, "size": 3}
    page.open("#picture=2&query=1,1&step=5&off=1.2")
    assert page.view()["off"] == ["0,1"]
    with emulated(quiet, 390):
        page.open()
        page.run("void $('steps').scrollTo({ left: 1e4, behavior: 'instant' })")
        page.wait(lambda: page.view()["step"] == 4)


@pytest.mark.parametrize("name", ["quadratic", "learned_content"])
def test_steps_show_the_same_in_every_order(open_page, name):
    """The soft head of step 4 was read off what step 3 had put in its layer's place."""
    page = open_page("#step=1", name)
    count = len(page.all("#steps button"))
    page.run("void (window.seen = Array.from(STEPS, () => new Set()))")
    for before, after in np.ndindex(count, count):
        page.run(f"choose(viewOfStep({before}))")
        page.ready()
        page.run(f"void ({before} % 2 && lastEpoch > 0 && choose({{ epoch: 0 }}), choose(viewOfStep({after})))")
        page.run(f"void seen[{after}].add(viewToHash() + view.query + view.head)")
    assert page.run("seen.slice(0, shownSteps().length).map((views) => views.size)") == [1] * count


def test_the_head_that_is_switched_off_costs_most(quadratic, runs, images, labels):
    for name in ("quadratic", "learned_content"):
        run, given = runs[name], [LabelledImage(image, "", CLASSES[n]) for image, n in zip(images, labels, strict=True)]
        results = [
            run.without_heads([(0, h)]).evaluate(images, labels) for h in range(run.model.blocks[0].attention.num_heads)
        ]
        assert costliest_head(run, given, CLASSES) == min(
            range(len(results)), key=lambda h: (results[h].right, -results[h].loss)
        )
        assert costliest_head(run, [], CLASSES) is None


def test_steps_speak_of_what_is_there(quiet, quadratic, images, tmp_path):
    """No accuracy without test images; and that a grid of heads was where they began, not what they learned."""
    grid = random_run(encoding="quadratic", num_heads=9)
    centres = [[float(i), float(j)] for i, j in np.ndindex(3, 3)]
    records = [
        {"step": step, "epoch": step / 20, "layers": [{"centre": centres, "spread": [1.0] * 9}] * 2} for step in (0, 40)
    ]
    grid = dataclasses.replace(grid, positions=records)
    for run, begins in ((quadratic, False), (grid, True)):
        page = Page(quiet, written(run, tmp_path / "page.html", [LabelledImage(images[0], "mine")])).open()
        text = page.run("$('steps').textContent")
        assert "accuracy" not in text
        assert ("began exactly on a 3 × 3 grid" in text) == begins


@pytest.mark.parametrize("width", [390, 1000])
def test_a_figure_in_another_page_says_its_height(quiet, open_page, width):
    with emulated(quiet, width):
        page = open_page("?figure#step=3")
        heard = (
            "const done = arguments[0]; onmessage = ({data}) => done(data.height); document.body.style.padding = '9px'"
        )
        height = quiet.execute_async_script(heard)
        assert height == pytest.approx(page.run("document.body.getBoundingClientRect().height"), abs=1)
        assert page.run("document.documentElement.scrollWidth <= innerWidth")
        assert page.run("$('steps').offsetTop > $('heads').offsetTop")
        assert not page.run("$('theorem').offsetHeight")
        assert page.view()["convolved"] == {"layers": 1, "size": 3}
