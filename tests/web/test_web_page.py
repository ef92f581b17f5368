"""The report's page in Chromium and Firefox: what it opens, asks for, lets run, and tells whom."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_views import HOSTILE, all_kinds

from ray_precheck.commands.report.page import write_report_page
from ray_precheck.schema.view import HeatMap, ViewState
from scripts.browser import Browser

pytestmark = [pytest.mark.web, pytest.mark.timeout(120)]

NOTHING: dict[str, list[str]] = {"errors": [], "requests": [], "violations": []}
_DRAWN = """
  document.querySelectorAll("regular-table tbody tr").length > 5
  && (!document.querySelector(".flow") || document.querySelectorAll(".flow .node").length > 0)
"""
_OPEN_ALL = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"


def heard(browser: Browser, path: Path) -> dict[str, Any]:
    """Return what the browser heard besides the page itself."""
    found = dict(browser.ask("heard"))
    found["requests"] = [each for each in found["requests"] if each.split("#")[0] != path.as_uri()]
    return found


def opened(browser: Browser, path: Path, **rest: Any) -> None:
    """Open a page and wait until its rows and graphs are drawn."""
    browser.open(path, **rest)
    browser.wait(_DRAWN)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["page", "hostile"])
def test_every_view_opens_without_error_or_request_and_is_accessible(
    browser: Browser, request: pytest.FixtureRequest, name: str, *, dark: bool
) -> None:
    path = request.getfixturevalue(name)
    opened(browser, path, dark=dark)
    for view in (1, 2):
        browser.ask("click", selector=f".views button:nth-child({view})")
        browser.wait(_DRAWN)
        browser.js(_OPEN_ALL)
        assert browser.ask("axe") == []
        # An attribute of SVG has its case, of which axe tells nothing: no key would reach the picture.
        assert browser.js("document.querySelectorAll('svg[tabIndex]:not([tabindex])').length") == 0
    assert browser.js("matchMedia('(prefers-color-scheme: dark)').matches") is dark
    assert heard(browser, path) == NOTHING


def test_texts_of_a_dump_do_nothing(browser: Browser, hostile: Path) -> None:
    opened(browser, hostile)
    # Each name of the table is there as text, whole or with its marks written out.
    shown = browser.js(
        "[...document.querySelectorAll('regular-table td:first-child')].map((each) => each.textContent)"
    )
    assert HOSTILE[0] in shown
    assert HOSTILE[1] in shown
    assert "\\u202egnp.exe\\u202c \\u2066isolated\\u2069" in shown
    assert len(browser.js("document.getElementById('app').textContent")) < 3_000_000
    browser.js(_OPEN_ALL)
    for link in ("regular-table a", ".card a", ".flow-told a"):
        browser.js(f"document.querySelectorAll({link!r}).forEach((each) => each.click())")
    assert browser.js("window.ran ?? null") is None
    assert browser.js("document.querySelectorAll('#app script, #app style, #app img').length") == 0
    targets = browser.js(
        "[...document.querySelectorAll('a')].map((each) => each.getAttribute('href'))"
    )
    assert {target[:1] for target in targets} == {"#"}
    assert heard(browser, hostile) == NOTHING


def test_a_link_of_any_name_opens_its_row(browser: Browser, hostile: Path) -> None:
    opened(browser, hostile, hash=HOSTILE[0])
    # A zero in a name is written as U+FFFD, and a name of 1,000,000 characters is cut: no link names them.
    for number, name in enumerate(HOSTILE[:-2]):
        browser.js(f"location.hash = encodeURIComponent({json.dumps(name)})")
        browser.wait(
            f"document.querySelector('tr.wanted')?.getAttribute('aria-rowindex') === '{number + 2}'"
        )
    assert browser.js("window.ran ?? null") is None


def test_the_policy_lets_nothing_else_run(browser: Browser, page: Path, tmp_path: Path) -> None:
    # The same page with a script and a style in it: what the policy is for.
    path = tmp_path / "planted.html"
    text = page.read_text("utf-8")
    path.write_text(
        text.replace(
            "<body>",
            "<body><script>window.ran = 1</script><img src='http://127.0.0.1:9/x.png'"
            " onerror='window.ran = 2'><p id='planted' style='color: red'></p>",
        ),
        "utf-8",
    )
    browser.open(path)
    browser.js("fetch('http://127.0.0.1:9/').catch(() => 0)")
    assert browser.js("window.ran ?? null") is None
    assert (
        browser.js("getComputedStyle(document.getElementById('planted')).color") != "rgb(255, 0, 0)"
    )
    violations = " ".join(heard(browser, path)["violations"])
    for directive in ("script-src", "img-src", "style-src", "connect-src"):
        assert directive in violations


def test_it_prints(browser: Browser, page: Path, tmp_path: Path) -> None:
    opened(browser, page)
    path = tmp_path / "report.pdf"
    browser.ask("pdf", path=str(path))
    data = path.read_bytes()
    assert data.startswith(b"%PDF")
    assert len(data) > 20_000
    assert heard(browser, page) == NOTHING


def test_a_link_to_a_section_takes_the_keyboard_there(browser: Browser, page: Path) -> None:
    opened(browser, page)
    browser.ask("press", key="Tab")
    assert browser.js("document.activeElement.className") == "skip"
    browser.ask("press", key="Enter")
    browser.wait("document.activeElement.id === 'head-title'")
    browser.ask("click", selector=".top nav a[href='#/rows']")
    browser.wait("document.activeElement.id === 'rows-title' && location.hash === '#/rows'")
    _heading_is_below_the_header(browser, "rows")
    # The address of a section opens it, too, and stays there when the rest of the page is drawn.
    opened(browser, page, hash="/rows")
    browser.wait("document.activeElement.id === 'rows-title'")
    browser.wait(
        "document.getElementById('rows').getBoundingClientRect().top"
        " - document.querySelector('.top').getBoundingClientRect().bottom < 20"
    )


def _heading_is_below_the_header(browser: Browser, section: str) -> None:
    browser.wait(
        "(() => { const top = document.querySelector('.top').getBoundingClientRect().bottom;"
        f" const title = document.getElementById('{section}-title').getBoundingClientRect().top;"
        " return title >= top && title < innerHeight; })()"
    )


@pytest.mark.parametrize("name", ["page", "hostile"])
def test_a_narrow_window_scrolls_only_down(
    browser: Browser, request: pytest.FixtureRequest, name: str
) -> None:
    opened(browser, request.getfixturevalue(name), width=400)
    browser.js(_OPEN_ALL)
    browser.wait("document.documentElement.scrollWidth <= 400")
    assert browser.js("document.querySelector('.top nav').offsetHeight") < 60
    for section in ("overview", "rows", "rest"):
        browser.js(f"document.querySelector(\".top nav a[href='#/{section}']\").click()")
        _heading_is_below_the_header(browser, section)


def test_how_the_run_went_is_folded_once_it_has_ended(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    states = (ViewState.FINISHED, ViewState.RUNNING)
    write_report_page(path, [replace(all_kinds(), state=state) for state in states], [])
    opened(browser, path)
    fold = "document.querySelector('#run > details.fold')"
    assert browser.js(f"{fold}.open") is False
    assert "What ran where; Headroom" in browser.js(f"{fold}.textContent")
    browser.ask("click", selector=".top nav a[href='#/run']")
    browser.wait(f"{fold}.open")
    browser.ask("click", selector=".views button:nth-child(2)")
    browser.wait(
        "document.querySelector('#run') && document.querySelector('#run > details') === null"
    )


def test_what_a_heat_map_measures_is_told_whole(browser: Browser, tmp_path: Path) -> None:
    unit = (
        "times what the rounding of the inputs and of the reference explains, of the worst output"
    )
    view = all_kinds()
    path = tmp_path / "report.html"
    charts = tuple(
        replace(chart, unit=unit) for chart in view.overview if isinstance(chart, HeatMap)
    )
    write_report_page(path, [replace(view, overview=charts)], [])
    opened(browser, path, width=400)
    legend = browser.js("document.querySelector('#overview .legend-line').textContent")
    assert unit in legend
    assert browser.js("document.documentElement.scrollWidth") <= 400
