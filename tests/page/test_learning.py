"""Heads that learn a convolution on the page: their gradients, the bound of too few heads, and what it says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_cnn_jax.models.attention.layer import SelfAttention
from attn_cnn_jax.models.encodings import Quadratic
from attn_cnn_jax.models.variables import join, split
from attn_cnn_jax.theorem import learning
from tests.page.browser import emulated

pytestmark = pytest.mark.slow

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
