"""Images that a visitor brings to the page or draws there, and exports of networks."""

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from attn_cnn_jax import load_pretrained
from attn_cnn_jax.data.image_files import LabelledImage, from_file
from attn_cnn_jax.data.sources import load
from attn_cnn_jax.runs import weights
from attn_cnn_jax.runs.pretrained import FOLDER
from tests.page.browser import Page
from tests.page.conftest import SIZE, dataset_of, random_run, written
from tests.support import networks
from tests.support.drawings import drawings

pytestmark = pytest.mark.slow


def test_a_drawing_is_classified_and_a_link_restores_it(quiet, tmp_path):
    """Strokes anywhere on the canvas become one image: centred, and scaled to what the data fills."""
    run = random_run(2, encoding="learned", content=True, image_shape=(*SIZE, 1))
    run.config.dataset.name = "digits"
    pixels = np.zeros((*SIZE, 1), np.uint8)
    pixels[1:9, 4:10] = 255
    images = [LabelledImage(pixels, "test 0", "3")]
    page = Page(quiet, written(run, tmp_path / "page.html", images, dataset_of(pixels[None], [3]))).open()
    page.find("#draw").click()
    page.ready()
    assert page.view()["picture"] == 1
    assert page.find("#caption").text == "your drawing"  # nothing is said of an empty canvas
    assert {output.text for output in page.all("#bars output")} == {"–"}
    page.drag((0, 0), (2, 0))
    page.drag((2, 0), (2, 2))
    drawn = np.array(page.run("Array.from(bytesOf(data.pictures[1].image))"), np.uint8).reshape(pixels.shape)
    rows, columns = np.nonzero(drawn[..., 0] > 25)
    assert (rows.min(), rows.max()) == (1, 8) or (columns.min(), columns.max()) == (4, 9)
    assert abs(columns.mean() - 6.5) < 1.5
    found = run.intermediates(drawn[None])
    np.testing.assert_allclose(page.logits(), found["logits"][0], atol=1e-4)
    assert "predicted" in page.find("#caption").text
    clipboard = "{ writeText: async (text) => { window.copied = text; } }"
    page.run(f"void Object.defineProperty(navigator, 'clipboard', {{ value: {clipboard} }})")
    page.find("#copy").click()
    page.wait(lambda: page.find("#copy").text == "Copied")
    assert page.run("copied") == page.driver.current_url
    logits, address = page.logits(), page.run("location.hash")
    expected = found["layers"][1]["attention"][0, 1][tuple(page.view()["query"])]
    np.testing.assert_allclose(page.probabilities(1, 1), expected, atol=1e-4)
    # The box is that of the test pictures, also of a page that lists none.
    box = page.run("(data.pictures.forEach((picture) => { picture.label = ''; }), frameOfTests())")
    assert box == {"left": 4, "top": 1, "width": 6, "height": 8}
    page.find("#clear").click()
    page.ready()
    assert page.run("Math.max(...bytesOf(data.pictures[1].image))") == 0
    page.wait(lambda: page.run("location.hash === viewToHash()"))  # without a copy
    assert not page.find("#copy").is_enabled()
    stage = "document.getElementById('picture').toDataURL()"
    page.shown()
    before = page.run(stage)
    page.all("#pictures button")[0].click()
    page.ready()
    assert page.run(stage) != before  # shows the picture, no longer the strokes
    assert page.find("#draw").get_attribute("aria-pressed") == "false"
    assert not page.find("#clear").is_displayed()
    page.point(0, 0).click().perform()
    assert page.view()["query"] == [0, 0]  # the pointer chooses again
    assert page.open(address).view()["picture"] == 1
    np.testing.assert_array_equal(page.logits(), logits)
    page.find("#draw").click()
    page.ready()
    np.testing.assert_array_equal(page.logits(), logits)  # a linked drawing stays until the first stroke
    page.run("(clearDrawing(), (drawing.last = [0, 0]), stroke([0.5, 0.5]))")  # Clear while a finger draws
    assert page.run("drawing.strokes.length") == 1
    page.run(f"location.hash = '#drawing=' + btoa(String.fromCharCode(...new Array({SIZE[0] * SIZE[1]}).fill(70)))")
    page.wait(lambda: page.run("bytesOf(data.pictures[1].image)[0]") == 70)  # another link in the same tab
    page.ready()
    assert page.logits() != pytest.approx(logits)
    page.driver.back()
    page.wait(lambda: page.run("bytesOf(data.pictures[1].image)[0]") == 0)
    page.ready()
    np.testing.assert_array_equal(page.logits(), logits)
    assert page.open("#drawing=AAAA").view()["picture"] == 0  # of another size


def brought(page, path):
    """The bytes that the network gets of a file that is brought to the page."""
    number = page.run("data.pictures.length")
    page.find("#file").send_keys(str(path))
    page.wait(lambda: page.find("#caption").text.startswith(f"{path.name} · predicted"))
    return np.array(page.run(f"Array.from(bytesOf(data.pictures[{number}].image))"), int)


DROP = """
const [name, done] = arguments;
const canvas = document.createElement("canvas");
canvas.toBlob((blob) => {
  const files = new DataTransfer();
  files.items.add(new File([blob], name));
  document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: files, bubbles: true, cancelable: true }));
  done();
});
"""


@pytest.mark.parametrize("channels", [1, 3])
def test_a_file_is_what_the_command_line_makes_of_it(quiet, tmp_path, channels):
    """Transparent parts are white, colours grey by Pillow's weights; other sizes nearly so, which the page says."""
    shape = (*SIZE, channels)
    page = Page(quiet, written(random_run(encoding="quadratic", image_shape=shape), tmp_path / "page.html")).open()
    random = np.random.default_rng(3)
    for height, width in (SIZE, (50, 300), (67, 310)):
        rgba = random.integers(96, 160, (height, width, 4), np.uint8)
        rgba[..., 3] = 255
        if (height, width) == SIZE:  # canvases round what they put on white, which the filter would add up
            rgba[: height // 2, :, 3] = 128
            rgba[0, :2] = (255, 0, 0, 255), (0, 0, 0, 0)
        else:
            rgba[:, : width // 2, :3] = 30
        path = tmp_path / f"<b>{height}x{width}.png"
        Image.fromarray(rgba).save(path)
        expected = from_file(path, shape).pixels.ravel().astype(int)
        is_resized = (height, width) != SIZE
        np.testing.assert_allclose(brought(page, path), expected, atol=20 if is_resized else 1, err_msg=path.name)
        assert page.find("#resampled").is_displayed() == is_resized
        assert page.find("#closed-world").text.startswith("It knows 10 classes, and names one of them")
    path.write_text("no picture")
    page.find("#file").send_keys(str(path))
    page.wait(lambda: page.find("#error").is_displayed())
    assert page.view()["picture"] == 2
    page.all("#pictures button")[1].click()
    assert not page.find("#error").is_displayed()  # goes with the next action
    page.driver.execute_async_script(DROP, "dropped.png")
    page.wait(lambda: page.view()["picture"] == 3)
    assert page.find("#caption").text.startswith("dropped.png · predicted")


DRAW = """\
((drawings, scale) => drawings.map((strokes) => {
  drawing.strokes = strokes.map((line) => line.map((place) => place.map((at) => at * INK_SIZE * scale)));
  scaleDrawing();
  return Array.from(bytesOf(data.pictures[drawing.index].image));
}))(...arguments)
"""


def test_hand_drawn_digits_are_read(quiet, tmp_path, data_dir):
    """A 7 without a bar was "3 (100%)", an 8 "0": 98 of 120 were right, and 120 are. A small drawing is as good."""
    run = load_pretrained("digits")
    scans = [LabelledImage(pixels, "test", "0") for pixels in load("digits", data_dir).test.images[:40]]
    path = written(run, tmp_path / "page.html", scans)
    assert path.stat().st_size < 1.2e6
    page = Page(quiet, path).open()
    np.testing.assert_allclose(page.logits(), run.logits(scans[0].pixels[None])[0], atol=1e-4)
    page.find("#draw").click()
    page.all("#pictures button")[0].click()
    digits, strokes = zip(*drawings(), strict=True)
    strokes = [[line.tolist() for line in lines] for lines in strokes]
    images = np.array(page.run(DRAW, strokes, 1), np.uint8).reshape(-1, 8, 8, 1)
    assert (run.predict(images).argmax(axis=1) == digits).sum() >= 114
    small = np.array(page.run(DRAW, strokes[:3], 0.3), int)
    np.testing.assert_allclose(small, images[:3].reshape(3, -1), atol=2)
    dot = np.array(page.run(DRAW, [[[[0.5, 0.5], [0.5, 0.5001]]]], 1))
    assert np.count_nonzero(dot) <= 16


def opened(page, *paths):
    """Brings files; returns the line that the page says of them, "" where it has opened the network."""
    page.run("void ($('error').textContent = $('title').textContent = '')")
    page.find("#file").send_keys("\n".join(map(str, paths)))
    page.wait(lambda: page.run("$('error').textContent || $('title').textContent"))
    page.ready()
    return page.run("$('error').textContent")


def exported(run, folder):
    folder.mkdir()
    weights.write(folder, run)
    return folder / weights.FILE


def test_exports_open_and_answer_as_in_jax(open_page, tmp_path):
    page = open_page()
    own = page.logits()
    runs = {name: load_pretrained(name) for name in ("digits", "cifar10")}
    runs["gated"] = random_run(2, encoding="quadratic_generalized", content=True, gate=True, head_size=4)
    runs["pre_norm"] = random_run(2, block="pre_norm", window=3)
    for name, run in runs.items():
        half = FOLDER / name / "model.safetensors"  # of cifar10, as it comes along
        assert opened(page, half if name == "cifar10" else exported(run, tmp_path / name)) == ""
        shape = tuple(run.config.model.image_shape)
        assert page.run("data.pictures.length") == 12  # those that were there, of its size now
        pixels = np.array(page.run("Array.from(bytesOf(data.pictures[0].image))"), np.uint8).reshape(1, *shape)
        expected = np.asarray(networks.logits_of(run.model, run.normalised(pixels))[0])
        np.testing.assert_allclose(page.logits(), expected, atol=1e-5 * max(1, np.abs(expected).max()), err_msg=name)
        assert len(page.all(".head")) == sum(block.attention.num_heads for block in run.model.blocks)
        assert f"for {run.config.dataset.name} attend" in page.find("#title").text
        assert "model.safetensors" in page.find("#facts").text
        page.run("choose({ head: [0, 1], off: new Set(['0,1']) })")
        page.ready()
        assert np.abs(np.subtract(page.logits(), expected)).max() > 1e-3
    page.find("#close").click()
    page.wait(lambda: page.run("data === ownData"))
    page.ready()
    np.testing.assert_array_equal(page.logits(), own)
    assert not page.find("#close").is_displayed()


def test_half_precision_is_numpys(open_page):
    bits = np.arange(2**16, dtype=np.uint16)
    bits = bits[np.isfinite(bits.view(np.float16))]
    read = open_page().run(f"Array.from(numbersOf(new Uint16Array({bits.tolist()}).buffer, true))")
    np.testing.assert_array_equal(np.array(read, np.float32), bits.view(np.float16).astype(np.float32))


def test_what_does_not_open_says_why(open_page, tmp_path):
    page, path = open_page(), exported(load_pretrained("digits"), tmp_path / "good")
    header, arrays = weights.read_arrays(path)
    save_file(arrays, tmp_path / "older.safetensors", {"step": "1"})
    assert "bring config.json" in opened(page, tmp_path / "older.safetensors")
    (tmp_path / "text.safetensors").write_text("no network")
    assert "damaged, or no safetensors file" in opened(page, tmp_path / "text.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(path.read_bytes()[:-400])
    assert "damaged, or no safetensors file" in opened(page, tmp_path / "cut.safetensors")
    learned = exported(random_run(2, encoding="learned"), tmp_path / "learned")
    assert "has learned in it" in opened(page, learned)
    arrays.pop("classifier.kernel")
    save_file(arrays, tmp_path / "part.safetensors", header)
    assert "has no classifier.kernel" in opened(page, tmp_path / "part.safetensors")
    (tmp_path / "notes.txt").write_text("no image")
    assert "no image and no safetensors export" in opened(page, tmp_path / "notes.txt")
    assert page.run("data.pictures.length") == 12  # what was there is there still
    assert opened(page, tmp_path / "older.safetensors", tmp_path / "good" / "config.json") == ""
