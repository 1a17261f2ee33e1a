"""The way from attention to convolution: shifted images, five steps, layers replaced, Theorem 1, and learning it."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax import reference
from attn_cnn_jax.analysis.convolution import kernel_of, replace_first, substitutes
from attn_cnn_jax.data.image_files import LabelledImage
from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.encodings import Quadratic
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.page.network import costliest_head
from attn_cnn_jax.theorem import learning
from attn_cnn_jax.theorem.rank import heads_needed
from attn_cnn_jax.theorem.to_attention import conv_to_attention
from tests.page.browser import ActionChains, Keys, Page, emulated
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


def test_terms_of_one_colour_are_one_head_and_its_entry(open_page, images):
    page = open_page("#picture=2&query=0,6")  # at the border: zeros
    page.run("setTheorem({ kernel: [1, 2, 3, 4, 5, 6, 7, 8, 9] })")
    page.wait(
        lambda: page.run("[...document.querySelectorAll('#sum-of-heads span')].at(-1)?.textContent ?? ''").endswith(
            "9.00"
        )
    )
    x = np.pad(images[2].mean(axis=-1) / 255, 1)[1:4, 13:16]  # 2x2 pixels are one of the grid
    for side in ("heads", "kernel"):
        terms = page.all(f"#sum-of-{side} span")
        read, values = np.array([term.text.split("\u2009×\u2009") for term in terms], float).T
        np.testing.assert_allclose(read, x.ravel(), atol=0.006)
        np.testing.assert_array_equal(values, range(1, 10))
        assert float(page.find(f"#total-of-{side}").text) == pytest.approx(x.ravel() @ values, abs=1e-4)
    colours = [
        [page.run("getComputedStyle(arguments[0]).backgroundColor", element) for element in page.all(selector)]
        for selector in ("#sum-of-heads span", "#sum-of-kernel span", "#entries input")
    ]
    assert colours[0] == colours[1] == colours[2]
    assert len(set(colours[0])) == 9


def test_the_theorem_is_that_of_the_package(open_page, images):
    """Nine heads of one sharpness are `conv_to_attention`'s, to 1e-7, and the convolution itself in the limit."""
    page = open_page("#picture=5")
    x = images[5].astype(np.float64).mean(axis=-1) / 255
    kernel = np.random.default_rng(0).normal(size=9)
    for sharpness in (-2, 1, 5):
        with jax.enable_x64(True):
            layer = conv_to_attention(kernel.reshape(3, 3, 1, 1), sharpness=2.0**sharpness)
            exact = conv_to_attention(kernel.reshape(3, 3, 1, 1))
            attention, convolution = (np.ravel(net(jnp.asarray(x)[None, ..., None])) for net in (layer, exact))
        page.run(f"setTheorem({{ kernel: {kernel.tolist()}, snap: 1, sharpness: {sharpness}, pixel: [3, 4] }})")
        found = page.run("theoremOf(brightness(), theorem)")
        np.testing.assert_allclose(found["attention"], attention, atol=1e-7)
        np.testing.assert_allclose(found["convolution"], convolution, atol=1e-7)
    assert float(page.find("#theorem-error").text.replace("\N{MINUS SIGN}", "-")) < 1e-6
    rows = [[cell.text for cell in row.find_elements("css selector", "td")] for row in page.all("#sum tr")]
    at = 3 * 2 * GRID[1] + 4
    assert [row[-1] for row in rows] == [f"= {attention[at]:.4f}", f"= {convolution[at]:.4f}"]
    for row in rows:
        assert sum(float(a) * float(b) for a, b in (cell.split(" × ") for cell in row[:-1])) == pytest.approx(
            convolution[at], abs=0.05
        )
    page.run("setTheorem({ kernel: GIVEN_KERNELS.edge, snap: 0, sharpness: -2 })")
    assert float(page.find("#theorem-error").text) > 0.1
    page.find("#run").click()
    page.run("void (theorem.snap = 0.9, theorem.sharpness = 4.5)")
    page.wait(lambda: page.run("theorem.sharpness") == 5)
    assert float(page.find("#theorem-error").text.replace("\N{MINUS SIGN}", "-")) < 1e-6


def test_few_heads_are_those_of_the_package(open_page, images):
    """One head or two for every filter of the panel, as `heads_needed` says; their sum is the convolution."""
    page = open_page("#picture=5")
    x = images[5].astype(np.float64).mean(axis=-1) / 255
    filters = page.run("FILTERS") | {"mine": np.random.default_rng(0).normal(size=25).tolist()}
    for name, entries in filters.items():
        size = math.isqrt(len(entries))
        kernel = np.reshape(entries, (size, size, 1, 1)).astype(np.float64)
        page.run(f"void setFew({{ filter: {list(entries)} }})")
        needed = heads_needed(kernel).enough
        assert len(page.all("#few-patterns canvas")) == needed, name
        assert page.find("#few-count").text.startswith({1: "One head is", 2: "Two heads are"}[needed])
        heads = page.run("headsOfFilter(few.filter)")
        np.testing.assert_allclose(sum(h["value"] * np.array(h["pattern"]) for h in heads), entries, atol=1e-12)
        np.testing.assert_allclose([sum(h["pattern"]) for h in heads], 1)
        with jax.enable_x64(True):
            expected = reference.evaluate(conv_to_attention(kernel, heads="fewest"), x[None, ..., None])
        found = page.run("[...patternMeans(brightness(), data.size, few.filter)]")
        np.testing.assert_allclose(found, np.ravel(expected), atol=1e-9)
        assert float(page.find("#few-error").text.replace("\N{MINUS SIGN}", "-")) < 1e-6
    random = np.random.default_rng(1)
    for rank in range(1, 10):
        kernel = random.normal(size=(9, rank)) @ random.normal(size=(rank, 9))
        page.run(f"void setFew({{ different: {rank} }})")
        needed = heads_needed(kernel.reshape(3, 3, 3, 3))
        assert rank <= needed.least <= needed.enough <= min(rank + 1, 9)
        said = f"at least {rank} heads, and {rank + 1} are" if rank < 9 else "nine heads"
        assert said in page.find("#few-rank").text


def test_a_filter_is_drawn_by_pointer_and_by_keys(open_page):
    page = open_page("#picture=5")
    page.find("#few-empty-3").click()
    assert page.find("#few-count").text == "Draw a filter."
    canvas = page.find("#few-canvas")
    drag = ActionChains(page.driver, duration=0).move_to_element(canvas).click_and_hold()
    drag.move_by_offset(int(canvas.rect["width"] / 3), 0).release().move_by_offset(0, -20).perform()
    assert page.run("few.filter") == [0, 0, 0, 0, 1, 1, 0, 0, 0]
    assert page.find("#few-count").text.startswith("One head is")
    page.find('[name="brush"][value="-1"]').click()
    canvas.send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT, Keys.ARROW_LEFT, Keys.ARROW_UP, " ", "+")
    assert page.run("few.filter") == [-0.75, 0, 0, 0, 1, 1, 0, 0, 0]
    assert page.find("#few-count").text.startswith("Two heads are")
    assert canvas.get_attribute("aria-label") == "Filter, row 1, column 1: -0.75"


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


NAMES = {"centre": "position.centre", "spread": "position.spread", "maps": "output.kernel"}  # in the page, in the layer
GRADIENTS = """
const each = (tree, of) => Object.fromEntries(Object.entries(tree).map(([name, numbers]) => [name, of.from(numbers)]));
const entries = entriesOf(Float64Array.from(arguments[1]));
const { error, gradients } = errorAndGradients(each(arguments[0], Float64Array), entries);
return { error, ...each(gradients, Array) };
"""


def test_gradients_are_jaxs(open_page):
    """Of the mean square over all images of noise, whose root is the twin's error on many of them."""
    kernel, rngs = learning.random_kernel(0), nnx.Rngs(0)
    layer = SelfAttention(Quadratic(5, rngs=rngs), num_heads=5, hidden_size=8, rngs=rngs)
    layer.output.bias[...] = jnp.zeros(8)
    skeleton, parameters, _ = split(layer)
    inner = slice(learning.MARGIN, learning.SIZE - learning.MARGIN)
    entries = np.zeros((6, 6, 12, 12, 8, 8), np.float32)  # what the convolution takes of each pixel
    for i, j, r, t in np.ndindex(6, 6, 3, 3):
        entries[i, j, i + learning.MARGIN + r - 1, j + learning.MARGIN + t - 1] = kernel[r, t]

    @jax.jit
    @jax.value_and_grad
    def mean_square(parameters):
        student = join(skeleton, parameters, {})
        attention = student.probabilities(jnp.zeros((1, 12, 12, 8)))[:, inner, inner]
        taken = jnp.einsum("hijkl,hdo->ijkldo", attention, student.merged_maps())
        return jnp.sum(jnp.square(taken - entries)) / jnp.sum(jnp.square(entries))

    square, gradients = mean_square(parameters)
    noise = learning.noise(jax.random.key(1), 1024, 8)
    sampled = float(learning.relative_error(skeleton, parameters, jnp.asarray(kernel), noise))
    given = {name: np.ravel(parameters[of]).astype(float).tolist() for name, of in NAMES.items()}
    found = open_page().driver.execute_script(GRADIENTS, given, kernel.ravel().astype(float).tolist())
    assert found["error"] == pytest.approx(float(square) ** 0.5, abs=1e-5) == pytest.approx(sampled, rel=0.01)
    for name, of in NAMES.items():
        np.testing.assert_allclose(found[name], np.ravel(gradients[of]), atol=1e-5, err_msg=name)


def test_the_bound_of_four_heads_is_eckart_youngs(open_page):
    """Attention that ignores the image gives a sum of four matrices of rank one, shifts by channels."""
    page = open_page()
    kernel = np.reshape(page.run("Array.from(newTeacher(randomNumbers(LEARNING.seed)))"), (9, -1))
    singular = np.linalg.svd(kernel, compute_uv=False)
    bound = np.sqrt(np.sum(singular[4:] ** 2) / np.sum(singular**2))
    assert f"below {100 * bound:.1f}% on this kernel" in page.run("VERDICTS[4]")


def test_training_plays_once_when_it_comes_into_sight(open_page):
    page = open_page()
    page.run("void (scrollTo(0, 0), $('more').open = true, document.body.style.paddingTop = '2000px')")
    page.run("void $('learning').scrollIntoView()")
    page.wait(lambda: page.find("#verdict").text.startswith("Nine heads, played once"), seconds=60)
    page.run("void (lesson = null, scrollTo(0, 0), $('learning').scrollIntoView())")
    page.shown()
    assert page.run("lesson") is None


def test_nine_heads_do_and_four_do_not(quiet, open_page):
    with emulated(quiet, prefers_reduced_motion="reduce"):
        page = open_page()
        learn = page.find("#learn")
        assert not learn.is_enabled()  # the reader says beforehand whether they will do
        for heads, verdict, low, high in ((4, "Not as you said", 60, 75), (9, "As you said", 0.1, 1)):
            page.find(f"input[name=heads][value='{heads}']").click()
            page.find("input[name=guess][value=yes]").click()
            learn.click()
            page.wait(lambda: page.find("#verdict").text, seconds=60)
            assert page.find("#verdict").text.startswith(verdict)
            assert low < 100 * page.run("lesson.records.at(-1).error") < high
            assert len(page.all("#ways circle")) == heads
