"""What a person does, done in Chromium: run notebooks in JupyterLab, read the site from a file and from a server.

Every request and every line of the console is recorded: one that leaves the machine, or one error, fails the test
that caused it. Pictures of what was on the screen go to the folder that `NCLIB_SCREENS` names (`make test` names
`results/screens/`), otherwise to the test's own folder.
"""

import base64
import contextlib
import importlib.util
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pandas as pd
import pytest
from links import Links
from selenium import webdriver
from selenium.common.exceptions import TimeoutException, WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from companion.site import build, explore, points
from nclib.publish.answer import WAITING
from nclib.publish.plots.style import MODEL_STYLE
from nclib.reproduce import reproduce
from nclib.system import paths, words

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER),
    reason="no chromium and chromedriver on the PATH; on Debian: apt-get install chromium chromium-driver",
)

HERE = {"127.0.0.1", "localhost"}
WIDTH, HEIGHT = 1280, 1000
PATIENCE = 240  # seconds; what takes a few on free cores takes many on busy ones


# --- the browser ----------------------------------------------------------------------------------------------


class Screen:
    """The browser and what it did since the last look."""

    def __init__(self, driver, pictures):
        self.driver, self.pictures = driver, pictures

    def open(self, address):
        self.driver.get(address)

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition, otherwise=""):
        """The first true value of ``condition()``; it may raise while the page is in the making."""
        waiting = WebDriverWait(self.driver, PATIENCE, 0.2, ignored_exceptions=[WebDriverException])
        try:
            return waiting.until(lambda _: condition(), otherwise)
        except TimeoutException:
            self.picture("failed")
            raise

    def click(self, selector):
        def clicked():
            self.one(selector).click()
            return True

        self.wait(clicked, otherwise=f"{selector} cannot be clicked")

    def picture(self, name):
        self.pictures.mkdir(parents=True, exist_ok=True)
        file = self.pictures / f"{name}.png"
        assert self.driver.save_screenshot(str(file)) and file.stat().st_size > 10_000

    def requests(self):
        """Addresses asked for since the last call, those of the browser's own pages left out."""
        said = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        asked = [m["params"]["request"]["url"] for m in said if m["method"] == "Network.requestWillBeSent"]
        asked += [m["params"]["url"] for m in said if m["method"] == "Network.webSocketCreated"]
        return [url for url in asked if urlsplit(url).scheme not in ("chrome", "data", "blob", "about")]

    def errors(self):
        """Errors on the console since the last call; none is ignored."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Chromium with a profile of its own, which knows no address but this machine's."""
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    arguments = ["headless=new", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking"]
    arguments += ["disable-component-update", "disable-sync", "disable-dev-shm-usage", f"window-size={WIDTH},{HEIGHT}"]
    arguments += [f"user-data-dir={tmp_path_factory.mktemp('chromium')}", "lang=en-GB", "force-color-profile=srgb"]
    arguments += ["no-sandbox"] * (os.geteuid() == 0)  # its sandbox refuses root, which containers are
    for argument in arguments:
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SE_OFFLINE", "true")  # with a Service of its own selenium looks for no driver; nor may it
        driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def screen(browser, tmp_path):
    screen = Screen(browser, Path(os.environ.get("NCLIB_SCREENS") or tmp_path / "screens").absolute())
    screen.open("about:blank")
    screen.requests(), screen.errors()
    yield screen
    asked = screen.requests()
    assert asked, "nothing was recorded, so nothing is known"
    left = [url for url in asked if urlsplit(url).scheme != "file" and urlsplit(url).hostname not in HERE]
    assert left == [], "requests left the machine"
    assert screen.errors() == []


# --- JupyterLab -----------------------------------------------------------------------------------------------

SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": True,
    },
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},  # or cells out of sight are not in the page
}


class Lab:
    def __init__(self, address, token, folder):
        self.address, self.token, self.folder, self.results = address, token, folder / "notebooks", folder / "results"

    def saved(self, name):
        """Code cells of a notebook as they are on the disk."""
        cells = json.loads((self.folder / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
        return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A JupyterLab of its own, with a copy of all notebooks; those that train in the smallest size."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(paths.notebooks(), folder / "notebooks", ignore=shutil.ignore_patterns(".*"))
    for name in ("neural_collapse/fig3", "explore"):
        make_small(folder / f"notebooks/{name}.ipynb")
    (folder / "settings").mkdir()
    (folder / "settings/overrides.json").write_text(json.dumps(SETTINGS))
    environment = {f"JUPYTER_{kind}_DIR": str(folder / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
    environment |= {f"JUPYTERLAB_{kind}_DIR": str(folder / kind) for kind in ("SETTINGS", "WORKSPACES")}
    environment |= {"IPYTHONDIR": str(folder / "ipython"), "NCLIB_ROOT": str(paths.root())}
    environment |= {"NCLIB_RESULTS": str(folder / "results"), "NCLIB_DATA": str(folder / "data")}
    port, token = free_port(), secrets.token_hex(16)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ServerApp.ip=127.0.0.1", "--allow-root"]
    command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}"]
    command += [f"--ServerApp.root_dir={folder / 'notebooks'}", f"--LabApp.app_settings_dir={folder / 'settings'}"]
    command += [
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",
    ]
    with started(command, folder / "log", f"http://127.0.0.1:{port}/api", environment) as address:
        yield Lab(address.removesuffix("/api"), token, folder)


def make_small(path):
    """As a person would: the profile in the cell of parameters."""
    text = path.read_text(encoding="utf-8")
    assert text.count('profile: str = \\"quick\\"') == 1
    path.write_text(text.replace('profile: str = \\"quick\\"', 'profile: str = \\"smoke\\"'), encoding="utf-8")


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def started(command, log, address, environment=(), seconds=90):
    """A server that has answered, for as long as it is needed; the address is given back."""
    kept = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}  # kernels choose theirs
    with log.open("w") as said:
        process = subprocess.Popen(command, env=kept | dict(environment), stdout=said, stderr=said, cwd=log.parent)
    try:
        end = time.monotonic() + seconds
        while not answers(address):
            assert process.poll() is None and time.monotonic() < end, f"no server:\n{log.read_text()[-3000:]}"
            time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait(30)


def answers(address):
    with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5):
        return True
    return False


PROMPTS = (
    "return [...document.querySelectorAll('.jp-NotebookPanel .jp-CodeCell .jp-InputPrompt')].map(e => e.innerText)"
)


def open_notebook(screen, lab, name):
    """The notebook in JupyterLab, with all its cells and a kernel that waits."""
    screen.open(f"{lab.address}/lab/tree/{name}.ipynb?token={lab.token}&reset")
    screen.wait(lambda: "| Idle" in screen.one("#jp-main-statusbar").text, otherwise=f"{name} has no kernel")
    screen.wait(lambda: len(screen.run(PROMPTS)) == len(lab.saved(name)), otherwise=f"{name} lacks cells")


def choose(screen, menu, command):
    """A command from the menu bar, with the mouse."""
    screen.wait(lambda: next(entry for entry in screen.all(".lm-MenuBar-item") if entry.text == menu)).click()
    screen.click(f'.lm-Menu-item[data-command="{command}"]')


def run_all(screen, lab, name):
    """From the menu; returns the code cells as saved, each executed once, in order, without an error."""

    def ended():  # all waiting cells have a star from the start; behind an error they lose it
        prompts = screen.run(PROMPTS)
        return re.fullmatch(r"\[\d+\]:", prompts[-1]) and "*" not in "".join(prompts)

    choose(screen, "Run", "runmenu:run-all")
    screen.wait(ended, otherwise=f"{name} does not end")
    choose(screen, "File", "docmanager:save")
    screen.wait(lambda: lab.saved(name)[0]["execution_count"], otherwise=f"{name} was not saved")
    cells = lab.saved(name)
    errors = [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]
    assert [error["ename"] + ": " + error["evalue"] for error in errors] == []
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    return cells


PICTURE = ".jp-NotebookPanel .jp-OutputArea-output img"


def show(screen, picture):
    """Scroll it to the middle of the screen."""
    screen.run("arguments[0].scrollIntoView({block: 'center'})", picture)
    assert screen.run("return arguments[0].naturalWidth", picture) > 300


@pytest.mark.slow
def test_a_notebook_of_the_course_runs_to_its_end_from_the_menu(screen, lab):
    name = "walkthrough/01_fixed_points"
    open_notebook(screen, lab, name)
    cells = run_all(screen, lab, name)
    pictures = screen.all(PICTURE)
    assert len(pictures) == sum("plotting.picture(" in "".join(cell["source"]) for cell in cells) >= 3
    assert all(len(picture.get_attribute("alt")) >= 60 for picture in pictures), "no words for who does not see it"
    show(screen, pictures[1])
    screen.picture("lab_walkthrough_01")


@pytest.mark.slow
def test_a_figure_is_trained_and_drawn_from_the_menu(screen, lab):
    name = "neural_collapse/fig3"
    open_notebook(screen, lab, name)
    cells = run_all(screen, lab, name)
    assert 'profile: str = "smoke"' in "".join(cells[0]["source"])
    show(screen, screen.all(PICTURE)[-2])
    assert (lab.results / "smoke/figures/neural_collapse/fig3.pdf").stat().st_size > 10_000
    screen.picture("lab_fig3")


OUTPUT = ".jp-NotebookPanel .jp-OutputArea .widget-interact"
"""A panel of the laboratory."""


@pytest.mark.slow
def test_the_explorer_trains_and_its_curves_follow(screen, lab):
    open_notebook(screen, lab, "explore")
    run_all(screen, lab, "explore")
    screen.wait(lambda: len(screen.all(f"{OUTPUT} img")) >= 3, otherwise="a panel lacks its picture")
    epochs = screen.wait(lambda: field(screen, "epochs"))
    screen.run("arguments[0].scrollIntoView()", epochs)
    epochs.send_keys("8", Keys.TAB)
    panel, seen = screen.all(OUTPUT)[0], set()
    screen.wait(lambda: "--epochs 8" in panel.text, otherwise="no such command")
    next(button for button in screen.all(".widget-button") if button.text == "Train").click()

    def look():
        seen.update(re.findall(r"epoch (\d+) of", panel.text))
        return re.search(r"finished, epoch 8 of (\S+)", panel.text)

    run = screen.wait(look, otherwise="training does not end")[1]
    assert len(seen) >= 2, "the curves did not follow the training"
    assert (lab.results / "runs" / run / "history.csv").is_file()
    for number, shown in enumerate(screen.all(OUTPUT)):
        screen.run("arguments[0].scrollIntoView()", shown)
        screen.picture(f"lab_explore_{number}")


def field(screen, label):
    """The input of the widget with this description."""
    rows = screen.all(".jp-OutputArea .widget-text")
    return next(row for row in rows if row.text.strip() == label).find_element(By.CSS_SELECTOR, "input")


# --- the site -------------------------------------------------------------------------------------------------

COURSE, FIGURE, CLAIM = "walkthrough/05_neural_collapse", "neural_collapse/fig1", "separation_bias/theorem1_regions"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site of three notebooks, executed in the smallest size."""
    if any(importlib.util.find_spec(module) is None for module in build._NEEDED.values()):
        pytest.skip('the web site is made by Sphinx: pip install ".[book]"')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCLIB_RESULTS", str(tmp_path_factory.mktemp("site") / "results"))
        patch.delenv("MPLBACKEND")  # kernels choose theirs
        summary = reproduce.reproduce([COURSE, FIGURE, CLAIM], "smoke", echo=lambda line: None)
        assert [row.status for row in summary.rows] == ["executed"] * 3
        return build.build("smoke", echo=lambda line: None).parent


@pytest.fixture(scope="module")
def server(site, tmp_path_factory):
    """``python -m http.server`` in the site's folder."""
    port, log = free_port(), tmp_path_factory.mktemp("server") / "log"
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(site)]
    with started(command, log, f"http://127.0.0.1:{port}/") as address:
        yield address


@pytest.fixture(params=["file", "server"])
def address(request, site):
    return f"{site.as_uri()}/" if request.param == "file" else request.getfixturevalue("server")


@pytest.mark.slow
def test_every_link_of_the_site_leads_somewhere(server):
    """From the landing page on, downloads included, to the anchor where there is one."""
    seen, ahead, broken = {}, [(server, "the address")], []
    while ahead:
        link, source = ahead.pop()
        page, anchor = urldefrag(link)
        if page not in seen:
            seen[page] = read_page(page)
            if seen[page] is not None:
                ahead += [(urljoin(page, target), page) for tag, target in seen[page].links if is_followed(tag, target)]
        if seen[page] is None or (anchor and page.endswith(".html") and unquote(anchor) not in seen[page].ids):
            broken.append((source, link))
    assert broken == []
    endings = {page.rpartition(".")[2] for page in seen}
    assert {"html", "ipynb", "pdf", "csv", "png", "css", "js"} <= endings and len(seen) > 40


def read_page(address):
    """Links and anchors of a page, none of another file; None for what is not there."""
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            content = answer.read()
    except urllib.error.HTTPError:
        return None
    return Links(content.decode() if answer.headers.get_content_type() == "text/html" else "")


def is_followed(tag, target):
    scheme = urlsplit(target).scheme
    assert scheme in ("", "data") or tag == "a", f"{tag} {target} would be fetched from elsewhere"
    return scheme == ""


@pytest.mark.slow
def test_pages_show_their_pictures_and_formulas(screen, address):
    for page in ("index.html", f"{FIGURE}.html", f"{COURSE}.html"):
        screen.open(address + page)
        pictures = screen.all("article img")
        assert pictures
        for picture in pictures:
            screen.run("arguments[0].loading = 'eager'; return arguments[0].decode()", picture)
            assert screen.run("return arguments[0].naturalWidth", picture) > 100
            assert picture.get_attribute("alt")
        text = screen.run("""const page = document.querySelector("article.bd-article").cloneNode(true);
            page.querySelectorAll("pre, code, math").forEach((element) => element.remove()); return page.textContent""")
        assert "$" not in text and "\\\\" not in text, "a formula was not understood"
        name = page.removesuffix(".html").replace("/", "_")
        screen.picture(f"site_{name}")
    boxes = screen.run("return [...document.querySelectorAll('math')].map(e => e.getBoundingClientRect().toJSON())")
    assert len(boxes) > 20 and all(box["width"] > 3 and box["height"] > 5 for box in boxes)
    fraction = screen.one("math mfrac")
    assert fraction.size["height"] > 1.3 * screen.one("math mi").size["height"], "formulas are not laid out"


@pytest.mark.slow
def test_the_answer_is_the_first_output_and_stands_under_the_claim(screen, site):
    cells = json.loads((site.parent / f"notebooks/{CLAIM}.ipynb").read_text(encoding="utf-8"))["cells"]
    first = next(output for cell in cells for output in cell.get("outputs", []))
    said = "".join(first["data"]["text/plain"])
    assert said != WAITING and said.startswith(tuple(words.STATEMENTS))
    screen.open(f"{site.as_uri()}/{CLAIM}.html")
    box = screen.one("article .nc-answer")
    shown = " ".join(box.text.split())
    assert all(" ".join(line.partition(": ")[2].split()) in shown for line in said.splitlines())
    assert len(screen.all("article .nc-answer")) == 1 and box.rect["y"] < screen.one("article h2").rect["y"]
    assert not any(code.is_displayed() for code in screen.all("article pre code, article .highlight-python"))
    screen.picture("site_answer")


WIDER = """document.querySelectorAll('details').forEach((fold) => { fold.open = true; });
    const edge = document.querySelector('article.bd-article').getBoundingClientRect().right + 1;
    return [...document.querySelectorAll('article :is(table, pre, img)')].filter((part) =>
        part.getBoundingClientRect().right > edge || (part.tagName === 'PRE' && part.scrollWidth > part.clientWidth + 1)
    ).concat([...document.querySelectorAll('article *')].filter((part) =>
        ['auto', 'scroll'].includes(getComputedStyle(part).overflowX) && part.scrollWidth > part.clientWidth + 1
    )).map((part) => part.textContent.slice(0, 80));"""


@pytest.mark.slow
def test_nothing_is_wider_than_a_page_of_1280_pixels(screen, site):
    window = screen.driver.get_window_size()
    screen.driver.set_window_size(1280, 900)
    try:
        pages = [FIGURE, CLAIM, COURSE, "index", "book/coming_from_torchdeq", "book/scale", "api/deq", "api/solver"]
        for page in pages:
            screen.open(f"{site.as_uri()}/{page}.html")
            assert screen.run(WIDER) == [], page
    finally:
        screen.driver.set_window_size(window["width"], window["height"])


@pytest.fixture(scope="module")
def curves(tmp_path_factory):
    """The page Explore of all tracked runs."""
    page = tmp_path_factory.mktemp("curves") / explore.FILE
    page.write_text(explore.page(build._tracked()), encoding="utf-8")
    assert page.stat().st_size <= 6_000_000
    return page.as_uri()


def choose_in_menu(screen, menu, text):
    """An entry of a menu of the chart, by its words."""
    chosen = next(row for row in screen.all(".vega-bind") if row.text.startswith(menu))
    Select(chosen.find_element(By.TAG_NAME, "select")).select_by_visible_text(text)


MEANS = "return [...document.querySelectorAll('.concat_0_layer_2_marks path')].map((line) => line.getAttribute('d'))"
SHOWN = "return [...document.querySelectorAll('#vg-tooltip-element tr')].map((row) => row.innerText).join(' ')"


@pytest.mark.slow
def test_curves_are_chosen_clicked_away_and_tell_their_run(screen, curves):
    screen.open(curves)
    first = screen.wait(lambda: screen.run(MEANS))
    choose_in_menu(screen, "setting", "digits (toy) · K_A = 3, R = 100")
    setting = screen.wait(lambda: (now := screen.run(MEANS)) != first and now)
    choose_in_menu(screen, "metric", "accuracy, mean over classes (%)")
    screen.wait(lambda: screen.run(MEANS) not in (first, setting))
    screen.picture("explore")
    before = len(screen.run(MEANS))
    plain = MODEL_STYLE["explicit"]
    screen.all("g.mark-symbol.role-mark")[1].find_element(By.CSS_SELECTOR, f'path[fill="{plain.colour}" i]').click()
    screen.wait(lambda: len(screen.run(MEANS)) == before - 1, otherwise="the variant is still there")
    points = screen.all("g.mark-symbol.role-mark")[0]
    ActionChains(screen.driver).move_to_element(points.find_elements(By.TAG_NAME, "path")[-1]).perform()
    told = " ".join(screen.wait(lambda: screen.run(SHOWN), otherwise="no run is told").split())
    assert re.search(r"variant \S.* seed \d epoch \d+ value [\d.]+ run digits-KA3-R100-\S+-s\d-\w{12}", told), told
    assert plain.label not in told
    screen.picture("explore_run")


@pytest.mark.slow
def test_a_dot_tells_its_class_and_shows_its_image(screen, tmp_path):
    image = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
    table = pd.DataFrame({"x": [0.0, 1.0], "y": [0.0, 1.0], "class": [3, 4], "model": "deq", "name": ["cat", "deer"]})
    page = tmp_path / "fig2.html"
    page.write_text(points.file(table.assign(minority=[False, True], image=[image, None])), encoding="utf-8")
    screen.open(page.as_uri())
    dots = screen.wait(lambda: screen.all("g.mark-symbol.role-mark path"))
    for dot, told, images in zip(dots, ("class cat kind majority", "class deer kind minority"), (1, 0), strict=True):
        ActionChains(screen.driver).move_to_element(dot).perform()
        screen.wait(lambda told=told: told in " ".join(screen.run(SHOWN).split()), otherwise=told)
        assert len(screen.all("#vg-tooltip-element img")) == images
    screen.picture("points")


@pytest.mark.slow
def test_search_finds_what_is_said_on_a_page(screen, address):
    screen.open(f"{address}{FIGURE}.html")
    screen.click("button.search-button-field, button.search-button__button")
    screen.wait(lambda: screen.driver.switch_to.active_element.get_attribute("name") == "q")
    screen.driver.switch_to.active_element.send_keys("minority collapse", Keys.ENTER)
    found = screen.wait(lambda: screen.one(f'#search-results li a[href^="{COURSE}.html"]'), otherwise="not found")
    excerpt = screen.wait(lambda: screen.one("#search-results li p.context"), otherwise="no excerpt").text
    assert "Build perfect neural collapse" in excerpt  # Sphinx shows the place of the last word
    screen.picture(f"site_search_{urlsplit(address).scheme}")
    found.click()
    screen.wait(lambda: "perfect neural collapse" in screen.one("article h1").text)


VISIBLE = "return arguments[0].checkVisibility() && arguments[0].getBoundingClientRect().height > 10"
"""What selenium says of a fold is whether it is open, and not what a style for paper makes of it."""


@pytest.mark.slow
def test_a_page_can_be_printed(screen, site):
    screen.open(f"{site.as_uri()}/{COURSE}.html")
    printed = base64.b64decode(screen.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert printed.startswith(b"%PDF") and 3 <= printed.count(b"/Type /Page\n") <= 20
    assert not screen.run(VISIBLE, screen.one("table.nc-record")), "the record is not folded on the screen"
    screen.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        for left_out in (".bd-sidebar-primary", ".header-article__inner", ".nc-links", ".prev-next-footer"):
            assert not any(element.is_displayed() for element in screen.all(left_out)), left_out
        shown = ("#jb-print-docs-body h1", "article h2", "article img", "article math")
        assert all(screen.one(element).is_displayed() for element in shown)
        assert screen.run(VISIBLE, screen.one("table.nc-record")), "the record is folded away on paper"
        wide = (
            "return [...document.querySelectorAll('article pre')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
        )
        assert screen.run(wide) == 0, "lines of code are cut off"
    finally:
        screen.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
