"""Sphinx configuration: `make docs` writes the site to docs/_build/html."""

import html
import inspect
import os
import re
import shutil
import subprocess
import sys
import textwrap
from configparser import ConfigParser
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util.inspect import stringify_signature

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))

from options import tables  # noqa: E402

project = "attn-cnn-jax"
author = "the attn-cnn-jax authors"
setup_cfg = ConfigParser()
setup_cfg.read(ROOT / "setup.cfg")
release = setup_cfg["metadata"]["version"]

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"attn-cnn-jax {release}"
html_copy_source = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_favicon = "_static/favicon.svg"
html_baseurl = os.environ.get("SITE_URL", "")  # where the site is served; a preview image needs the whole address
html_search_scorer = str(HERE / "_static" / "scorer.js")
html_math_renderer = "mathml"  # the pages open from disk, without network

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
smartquotes = False  # a command's --options keep both hyphens

# Docstrings: Google style, with `single backticks` around code, and shapes in the types.
default_role = "code"
napoleon_use_ivar = True
napoleon_use_rtype = False
autodoc_default_options = {"members": True, "show-inheritance": False}
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
    (r"<class 'jax\.numpy\.(\w+)'>", r"jnp.\1"),
    (r"~jaxtyping\.Key\[Array, ''\] \| ~jaxtyping\.UInt32\[Array, '2'\] \| ~jaxtyping\.UInt32\[Array, '4'\]", "Key"),
]


def copy_notebooks(app, config):
    """Copies notebooks/ to docs/notebooks, where Sphinx finds them, with links that fit there."""
    folder = HERE / "notebooks"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        (folder / notebook.name).write_text(notebook.read_text().replace("](../docs/", "](../"))


def prepare_source(app, docname, source):
    """Keeps links to notebooks in the site, which lead to notebooks/ for readers of files; lists the options."""
    source[0] = source[0].replace("](../notebooks/", "](notebooks/")
    if docname == "options":
        source[0] = source[0].replace("<!-- options -->", tables())


def collapse_navigation(app, page, template, context, doctree):
    """Shows of the navigation only the branch of the page itself: to copy all modules for each of them takes long."""
    if whole := context.get("toctree"):
        context["toctree"] = lambda **options: whole(**options | {"collapse": True})


def write_live_pages(app, exception):
    """Writes the interactive pages, which the front page shows in frames."""
    if exception is None and app.builder.format == "html":
        subprocess.run([sys.executable, HERE / "live_pages.py", app.outdir], cwd=ROOT, check=True)


def describe(app, page, template, context, doctree):
    """Adds a description, the first paragraph, and a preview image to the head of a page."""
    if doctree is not None:
        first = next(doctree.findall(nodes.paragraph), None)
        text = textwrap.shorten(first.astext() if first else project, 200, placeholder=" …")
        tags = {"description": text}, {"og:title": context["title"], "og:description": text}
        tags[1]["og:image"] = html_baseurl + context["pathto"]("_images/viewer.png", resource=True)
        for kind, named in zip(("name", "property"), tags, strict=True):
            for name, content in named.items():
                context["metatags"] += f'<meta {kind}="{name}" content="{html.escape(content)}">\n'


def repair_backlinks(app, page, template, context, doctree):
    """Links a source listing to names as they are documented; viewcode writes all of a module like the first one."""
    if page.startswith("_modules/attn_cnn_jax"):
        module, objects = page.removeprefix("_modules/").replace("/", "."), app.env.get_domain("py").objects

        def repaired(link):
            parts = link[1].split(".")
            tails = (f"{module}.{'.'.join(parts[n:])}" for n in range(1, len(parts)))
            return link[0] if link[1] in objects else f'#{next((name for name in tails if name in objects), link[1])}"'

        context["body"] = re.sub(r'#(attn_cnn_jax[\w.]+)"', repaired, context["body"])


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
        formula = tex2mathml(node.astext(), as_block=as_block)
        translator.body.append(f'<div class="formula">{formula}</div>' if as_block else formula)
        raise nodes.SkipNode

    return visit, None


def setup(app):
    app.add_html_math_renderer("mathml", mathml(False), mathml(True))
    app.connect("config-inited", copy_notebooks)
    app.connect("source-read", prepare_source)
    app.connect("html-page-context", collapse_navigation, priority=400)  # before the theme
    app.connect("html-page-context", describe)
    app.connect("html-page-context", repair_backlinks)
    app.connect("build-finished", write_live_pages)
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-process-docstring", keep_colon, priority=400)  # before napoleon
