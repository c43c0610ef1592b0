"""How Sphinx makes the site; `nclib report` lays out the sources and calls it. Nothing is fetched from the network."""

import html
import importlib.util
import re
from pathlib import Path

project = html_title = "nclib"
extensions = ["myst_nb", "numpydoc", "sphinx_design"]

# --- the reference, from docstrings ---

templates_path = ["_templates"]  # a class without what it inherits
autodoc_typehints = "none"
autodoc_inherit_docstrings = False  # what torch says of its own modules is not said of ours
numpydoc_show_class_members = False


def _stars(app, what, name, value, options, lines):
    """Docstrings say z*, (B, *) and *args, where a star would begin emphasis."""
    kept = r"(.*>>>.*|``.*?``|\*\*[^*]+\*\*|\\\*)"  # code, what numpydoc makes bold, a star that is escaped
    lines[:] = [re.sub(rf"{kept}|\*", lambda found: found[1] or r"\*", line) for line in lines]


def _escape(app, page, template, context, doctree):
    """The theme prints titles as HTML, and a formula in a title may hold any letter."""
    context |= {name: html.escape(context.get(name, "")) for name in ("pagetitle", "root_title")}


def setup(app):
    app.connect("autodoc-process-docstring", _stars)
    app.connect("html-page-context", _escape, priority=900)


# --- notebooks: shown as they were executed ---

nb_execution_mode = "off"
nb_ipywidgets_js = {}  # the default asks a server for the scripts of live widgets; their static pictures are shown
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
nb_merge_streams = True
myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_dmath_double_inline = True  # $$…$$ on a line of its own within a paragraph, as JupyterLab reads it
myst_heading_anchors = 3
suppress_warnings = ["mystnb.unknown_mime_type", "myst.header"]

# --- pages ---

html_theme = "sphinx_book_theme"
html_theme_options = {
    "home_page_in_toc": True,
    "show_navbar_depth": 1,
    "navbar_persistent": "",
    "footer_content_items": "",
    "search_bar_text": "Search …",
    "secondary_sidebar_items": {"**": ["page-toc"], "index": []},
}
html_context = {"default_mode": "auto"}
_mathjax = Path(importlib.util.find_spec("sphinx-mathjax-offline").origin).parent / "static/mathjax/tex-svg-full.js"
html_static_path = ["_static", str(_mathjax)]
mathjax_path = _mathjax.name
html_favicon = "_static/nclib.svg"
html_css_files = ["nclib.css"]
html_search_scorer = str(Path(__file__).with_name("_static") / "scorer.js")
html_show_search_summary = False  # a page opened from a file may not read its neighbours
html_show_copyright = False
html_show_sphinx = False
