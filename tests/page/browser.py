"""A page of the package that is open in a browser."""

import base64
import contextlib
import io

import numpy as np
from PIL import Image

with contextlib.suppress(ImportError):  # tests that need it are skipped, see conftest.py
    from selenium.webdriver import ActionChains, Keys
    from selenium.webdriver.support.ui import WebDriverWait

GRID = ROWS, COLUMNS = 5, 7  # of the small networks; not square, so that rows and columns can't be mixed up


class Page:
    """A page that is open in the browser."""

    def __init__(self, driver, path):
        self.driver, self.path = driver, path

    def open(self, address=""):
        self.driver.get("about:blank")  # else a new hash alone loads nothing
        self.driver.get(f"file://{self.path}{address}")
        self.ready()
        self.run("void ($('more').open = true)")
        return self

    def ready(self):
        self.driver.execute_async_script("started.then(() => ready).then(arguments[0])")
        self.shown()

    def shown(self):
        """Waits until what was asked for is shown: the page draws with the browser's next frame."""
        self.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")

    def run(self, script, *arguments):
        return self.driver.execute_script(f"return {script}", *arguments)

    def view(self):
        sets = "terms: [...view.terms], off: [...view.off]"
        return self.run(f"({{ ...view, {sets}, query: currentQuery(), head: currentHead() }})")

    def probabilities(self, layer, head):
        return np.array(self.run(f"Array.from(probabilitiesOf({layer}, {head}))")).reshape(ROWS, COLUMNS)

    def logits(self, layer=-1):
        return self.run(f"Array.from(classified.logits.at({layer}))")

    def find(self, selector):
        self.shown()
        return self.driver.find_element("css selector", selector)

    def all(self, selector):
        self.shown()
        return self.driver.find_elements("css selector", selector)

    def point(self, row, column, after=None):
        """The mouse moves to a pixel of the picture, after other actions."""
        canvas = self.find("#picture")
        x, y = ((n + 0.5) / size - 0.5 for n, size in ((column, COLUMNS), (row, ROWS)))
        width, height = canvas.rect["width"], canvas.rect["height"]
        actions = after or ActionChains(self.driver, duration=0)
        return actions.move_to_element_with_offset(canvas, int(x * width), int(y * height))

    def drag(self, start, end):
        """The mouse draws from one pixel of the picture to another."""
        self.point(*end, self.point(*start).click_and_hold()).release().perform()
        self.ready()

    def keys(self, *keys, shift=False):
        actions = ActionChains(self.driver)
        held = actions.key_down(Keys.SHIFT).send_keys(*keys).key_up(Keys.SHIFT) if shift else actions.send_keys(*keys)
        held.perform()

    def wait(self, condition, seconds=10):
        WebDriverWait(self.driver, seconds, poll_frequency=0.05).until(lambda _: condition())

    def drawn(self, layer, head):
        """The colours of a tile, once what was asked for is drawn: `(rows, columns, 3)`."""
        self.shown()
        picture = self.run(f"tiles[{layer}][{head}].canvas.toDataURL()")
        png = io.BytesIO(base64.b64decode(picture.partition(",")[2]))
        return np.asarray(Image.open(png).convert("RGB")).astype(int)


@contextlib.contextmanager
def emulated(driver, width=1280, height=800, **media):
    """Chromium with a screen of this size, and what `prefers-...` and other media features say, with "_" for "-"."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 800}
    features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": width < 800})
    try:
        yield
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
