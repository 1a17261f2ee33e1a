"""Sphinx configuration: `make docs` writes the site to docs/_build/html."""

import inspect
import re
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util.inspect import stringify_signature

HERE = Path(__file__).parent
ROOT = HERE.parent

project = "attn-cnn-jax"
author = "the attn-cnn-jax authors"
setup_cfg = ConfigParser()
setup_cfg.read(ROOT / "setup.cfg")
release = setup_cfg["metadata"]["version"]

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "_templates"]
templates_path = ["_templates"]

html_theme = "furo"
html_title = f"attn-cnn-jax {release}"
html_copy_source = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"  # the pages open from disk, without network

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
smartquotes = False  # a command's --options keep both hyphens

# Docstrings: Google style, with `single backticks` around code, and shapes in the types.
default_role = "code"
napoleon_use_ivar = True
napoleon_use_rtype = False
autodoc_default_options = {"members": True, "show-inheritance": False, "ignore-module-all": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_mock_imports = ["torch"]  # optional, and not needed to read a docstring
python_maximum_signature_line_length = 88

nb_execution_mode = "off"  # `make notebooks` keeps outputs in them, and tests compare these with their sources
nb_merge_streams = True

# Types as signatures in the source have them; the aliases of attn_cnn_jax/arrays.py are unions by then.
SHORTER_TYPES = [
    (r"jaxlib\._jax\.Array", "Array"),
    (r"(~jaxtyping\.\w+)\[Array, ('[^']*')\] \| \1\[ndarray, \2\]", r"\1[AnyArray, \2]"),
    (r"~jaxtyping\.Key\[Array, ''\] \| ~jaxtyping\.UInt32\[Array, '2'\] \| ~jaxtyping\.UInt32\[Array, '4'\]", "Key"),
]


def copy_notebooks(app, config):
    """Copies notebooks/ to docs/notebooks, where Sphinx finds them, with links that fit there."""
    folder = HERE / "notebooks"
    folder.mkdir(exist_ok=True)
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        (folder / notebook.name).write_text(notebook.read_text().replace("](../docs/", "](../"))


def notebook_links(app, docname, source):
    """Links of pages to notebooks, which lead to notebooks/ where the pages are read as files, stay in the site."""
    source[0] = source[0].replace("](../notebooks/", "](notebooks/")


def collapse_navigation(app, page, template, context, doctree):
    """Shows of the navigation only the branch of the page itself: to copy all modules for each of them takes long."""
    if whole := context.get("toctree"):
        context["toctree"] = lambda **options: whole(**options | {"collapse": True})


def write_live_pages(app, exception):
    """Writes the interactive pages, which the front page shows in frames."""
    if exception is None and app.builder.format == "html":
        subprocess.run([sys.executable, HERE / "live_pages.py", app.outdir], cwd=ROOT, check=True)


def remove_stale_api(app, config):
    """Removes the pages of modules that may no longer exist; autosummary writes those that do."""
    shutil.rmtree(HERE / "api", ignore_errors=True)


def skip_fields(app, what, name, member, skip, options):
    """Skips the docstring that Python gives to every field of a NamedTuple."""
    return True if (getattr(member, "__doc__", None) or "").startswith("Alias for field number") else None


def signature(app, what, name, obj, options, arguments, returns):
    """Signatures as the source has them; the metaclass of Flax modules hides their `__init__`."""
    if what == "class" and arguments == "(*args: Any, **kwargs: Any)":
        own = inspect.signature(obj.__init__)
        own = own.replace(parameters=list(own.parameters.values())[1:])
        arguments = stringify_signature(own, show_return_annotation=False, unqualified_typehints=True)
    for pattern, shorter in SHORTER_TYPES:
        arguments, returns = (text and re.sub(pattern, shorter, text) for text in (arguments, returns))
    return arguments, returns


def keep_colon(app, what, name, obj, options, lines):
    """Keeps napoleon from reading the text before a colon in a property's docstring as its type."""
    if what == "property" and lines:
        lines[0] = lines[0].replace(": ", ", ")


def mathml(as_block):
    """A visitor of formulas: MathML, which browsers draw without a script."""

    def visit(translator, node):
        translator.body.append(tex2mathml(node.astext(), as_block=as_block))
        raise SkipNode

    return visit, None


def setup(app):
    app.add_html_math_renderer("mathml", mathml(False), mathml(True))
    app.connect("config-inited", copy_notebooks)
    app.connect("config-inited", remove_stale_api)
    app.connect("source-read", notebook_links)
    app.connect("html-page-context", collapse_navigation, priority=400)  # before the theme
    app.connect("build-finished", write_live_pages)
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-process-docstring", keep_colon, priority=400)  # before napoleon
