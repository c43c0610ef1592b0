"""How Sphinx makes the book. `nclib report` lays out the sources and calls it; nothing here reaches for the network."""

import html
import json
import re
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from myst_nb.sphinx_ import SphinxNbRenderer
from myst_parser.mdit_to_docutils.sphinx_ import SphinxRenderer
from sphinx import addnodes
from sphinx.util import logging

from companion.site import api
from nclib.system import processes

processes.follow_parent()  # `nclib report` may be killed

project = "nclib"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]

# --- the reference, from docstrings ---

default_role = "py:obj"
autosummary_generate = False  # the entries stand below the table, on the same page
autodoc_typehints = "signature"
autodoc_inherit_docstrings = False  # what torch says of its own modules is not said of ours
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
add_module_names = False
napoleon_use_rtype = False

# --- notebooks: shown as they were executed ---

nb_execution_mode = "off"
nb_ipywidgets_js = {}  # the default asks a server for the scripts of live widgets; their static pictures are shown
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
nb_merge_streams = True
myst_enable_extensions = ["amsmath", "dollarmath"]
myst_dmath_double_inline = True  # $$…$$ on a line of its own within a paragraph, as JupyterLab reads it
myst_heading_anchors = 3
suppress_warnings = ["mystnb.unknown_mime_type", "myst.header"]

# --- pages ---

html_theme = "sphinx_book_theme"
html_theme_options = {
    "use_download_button": False,  # it would offer our sources; each page links the files that matter
    "home_page_in_toc": True,
    "show_navbar_depth": 1,
    "footer_content_items": "",
    "navbar_persistent": "",
    "search_bar_text": "Search the book …",
}
html_context = {"default_mode": "auto"}  # without it each page complains on the console
html_static_path = ["_static"]
html_favicon = "_static/nclib.svg"
html_css_files = ["nclib.css"]
html_js_files = ["nclib.js"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
html_math_renderer = "mathml"

# --- mathematics, turned into MathML here so that no script has to be fetched to show it ---

_SPELLED_OUT = (  # what latex2mathml leaves as it is, or turns into attributes that browsers ignore
    (re.compile(r"\\arg(?![A-Za-z])"), r"\\operatorname{arg}"),
    (re.compile(r"(\\math(?:bb|bf|cal|frak|sf)) +(\w)"), r"\1{\2}"),
)
_BARS = re.compile("<mo>(&#x(?:02016|0007C);)</mo>")  # ‖ and |: unless told otherwise they grow and drop
_BIG = re.compile(r'<(ms(?:u[bp]|ubsup))>(<mo[^>]* minsize="([\d.]+)em"[^>]*>[^<]*</mo>)')
_log = logging.getLogger(__name__)


def _mathml(node, display):
    """A formula as MathML. One that cannot be read is shown as typed, with a warning that names the page."""
    source = text = node.astext()
    for pattern, replacement in _SPELLED_OUT:
        text = pattern.sub(replacement, text)
    try:
        markup = convert(text, display=display)
    except Exception as error:  # latex2mathml has no common base for what it raises
        _log.warning("formula not understood (%r): %s", error, source, location=node)
        return f"<code>{html.escape(source)}</code>"
    markup = _BARS.sub(r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>', markup)
    markup = _BIG.sub(_beside, markup).replace(r"\_", "_")
    left = re.search(r"\\[A-Za-z]+", markup)
    if left:
        _log.warning("formula with the unknown command %s: %s", left[0], source, location=node)
    return markup


def _beside(match):
    """A big bracket with an exponent: browsers shrink it, so the exponent is hung on a space of the same height."""
    script, bracket, size = match[1], match[2], float(match[3])
    return f'{bracket}<{script}><mspace height="{size / 2 + 0.25:.2f}em" depth="{size / 2 - 0.25:.2f}em"></mspace>'


def _inline(self, node):
    self.body.append(_mathml(node, "inline"))
    raise nodes.SkipNode


def _block(self, node):
    self.body.append(f'<div class="nc-formula">{_mathml(node, "block")}</div>')
    raise nodes.SkipNode


def _add_print_button(app, pagename, templatename, context, doctree):
    button = {
        "type": "javascript",
        "javascript": "window.print()",
        "tooltip": "Print, or save as PDF",
        "icon": "fas fa-print",
        "label": "print-button",
        "classes": "pst-navbar-icon",
    }
    context.setdefault("header_buttons", []).insert(0, button)


# --- long names in tables break where a word of theirs ends ---

_CELL = re.compile(r"(<t[hd][^>]*>)([^<\s]{12,})(?=</t[hd]>)")


def _break_names(app, pagename, templatename, context, doctree):
    if doctree is not None:
        broken = lambda cell: cell[1] + re.sub(r"(?<=[_/])(?=[^_/])", "<wbr>", cell[2])  # noqa: E731
        context["body"] = _CELL.sub(broken, context["body"])


# --- excerpts of search results ---

_PICTURE = re.compile(r'src="data:[^"]*"')
_bodies = {}


def _keep_body(app, pagename, templatename, context, doctree):
    if doctree is not None:
        _bodies[f"{pagename}.html"] = _PICTURE.sub("", context["body"])


def _write_bodies(app, exception):
    """The text of every page in a script, for nclib.js."""
    if exception is None:
        script = Path(app.outdir) / "_static" / "bodies.js"
        script.write_text(f"window.nclibBodies = {json.dumps(_bodies, sort_keys=True)};\n", encoding="utf-8")


# --- code words of pages lead to the reference: its own, and those of the site that it is joined to ---


def _write_reference(app):
    api.write_pages(Path(app.srcdir) / "api")
    names = json.dumps({name.rpartition(".")[2]: [name, part] for part in api.names() for name in api.names()[part]})
    for folder in (app.srcdir, app.outdir):
        (Path(folder) / "names.json").write_text(names, encoding="utf-8")


def _link_code_words(app, doctree, pagename):
    listing = Path(app.srcdir) / "names.json"
    known = json.loads(listing.read_text(encoding="utf-8")) if listing.exists() else {}
    for word in list(doctree.findall(nodes.literal)):
        found = api.target(word.astext(), known)
        if found is None or isinstance(word.parent, (nodes.reference, nodes.title)):
            continue
        name, part = found
        place = app.builder.get_relative_uri(pagename, f"api/{part}") + f"#{name}"
        link = nodes.reference("", "", internal=True, refuri=place)
        word.replace_self(link)
        link += word


# --- a notebook is text and outputs: its directives and roles, which could read files and import modules, are shown ---


def _show_directive(self, token, *_, **__):
    node = self.create_highlighted_code_block(token.content, None, source=self.document["source"])
    self.current_node.append(node)


def _show_role(self, token):
    self.current_node.append(nodes.literal(token.content, token.content))


SphinxNbRenderer.render_directive = SphinxNbRenderer.render_restructuredtext = _show_directive
SphinxNbRenderer.render_myst_role = _show_role

# --- so are those of the front page, but for its lists of pages: titles and names of notebooks stand in it ---

_obey = {name: getattr(SphinxRenderer, name) for name in ("render_directive", "render_restructuredtext")}


def _list_pages(self, token, name, arguments, **options):
    of_front_page = self.sphinx_env.docname == "index" and name != "toctree"
    (_show_directive if of_front_page else _obey["render_directive"])(self, token, name, arguments, **options)


def _front_page_has_none(self, token):
    (_show_directive if self.sphinx_env.docname == "index" else _obey["render_restructuredtext"])(self, token)


SphinxRenderer.render_directive, SphinxRenderer.render_restructuredtext = _list_pages, _front_page_has_none


# --- a page shows and offers files of the book and of its own outputs, and no others of this machine ---


def _leave_out_other_files(app, doctree):
    allowed = [Path(app.srcdir).resolve(), Path(app.outdir).resolve().parent / "jupyter_execute"]
    folder = Path(app.env.doc2path(app.env.docname)).parent
    for node in [*doctree.findall(addnodes.download_reference), *doctree.findall(nodes.image)]:
        target = node.get("reftarget") or node.get("uri", "")
        if "://" in target or target.startswith("data:"):
            continue
        base = Path(app.srcdir) if target.startswith("/") else folder
        file = (base / target.lstrip("/")).resolve()
        if not any(file.is_relative_to(root) for root in allowed):
            _log.warning("left out, as it lies outside the book: %s", target, location=node)
            node.replace_self(nodes.literal(target, target))


def setup(app):
    if "reference" in app.tags:
        app.connect("builder-inited", _write_reference)
    app.connect("autodoc-process-docstring", api.process_docstring, priority=400)  # before napoleon
    app.connect("doctree-read", _leave_out_other_files, priority=1)  # before Sphinx copies them
    app.connect("doctree-resolved", _link_code_words)
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("html-page-context", _keep_body)
    app.connect("html-page-context", _break_names)
    app.connect("build-finished", _write_bodies)
    app.connect("html-page-context", _add_print_button, priority=900)  # after the theme has made its own buttons
