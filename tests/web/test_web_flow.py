"""The graph of the page in Chromium and Firefox: where it opens, what a click and the keys do."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_views import all_kinds, change_page
from sample_views import flow as flow_of

from ray_precheck.commands.report.page import write_report_page
from scripts.browser import Browser

pytestmark = [pytest.mark.web, pytest.mark.timeout(120)]

_NODES = "document.querySelectorAll('.flow .node').length"
_TOLD = "document.querySelector('.flow-told').textContent"
_FOCUSED = "document.activeElement.getAttribute('aria-label')"


@pytest.fixture
def flow(browser: Browser, page: Path) -> Browser:
    """Return a browser whose page shows a graph, opened at call 20."""
    browser.open(page)
    browser.wait(f"{_NODES} > 3")
    return browser


def test_it_opens_around_the_first_difference(flow: Browser) -> None:
    assert "Torch.add.20, call 21 of 300: own error 4, inherited 0" in flow.js(_TOLD)
    assert flow.js(_NODES) < 60
    assert flow.js("document.querySelectorAll('.flow .pair').length") == 1
    assert "✗ Torch.add.20" in flow.js("document.querySelector('.flow .node.error').textContent")


def test_a_click_opens_more(flow: Browser) -> None:
    before = flow.js(_NODES)
    flow.js(
        "[...document.querySelectorAll('.flow .node')].find((each) => each.querySelector('.more'))"
        ".querySelector('.box').dispatchEvent(new MouseEvent('click', { bubbles: true }))"
    )
    flow.wait(f"{_NODES} > {before}")


def test_keys_walk_along_the_edges(flow: Browser) -> None:
    flow.js("document.querySelector('.flow .node.current .box').focus()")
    assert flow.js(_FOCUSED).startswith("Torch.add.20: error")
    flow.ask("press", key="ArrowDown")
    flow.wait(f"{_FOCUSED}.startsWith('Torch.add.21: warning')")
    assert "Torch.add.21" in flow.js(_TOLD)
    flow.ask("press", key="ArrowUp")
    flow.wait(f"{_FOCUSED}.startsWith('Torch.add.20')")
    flow.ask("press", key="ArrowUp")
    flow.ask("press", key="ArrowUp")
    before = flow.js(_NODES)
    flow.ask("press", key="Enter")
    flow.wait(f"{_NODES} > {before}")
    assert flow.js("document.activeElement.classList.contains('box')")


def test_an_arrow_over_the_border_opens_more(flow: Browser) -> None:
    flow.js("document.querySelector('.flow .node.current .box').focus()")
    for call in range(21, 26):
        flow.ask("press", key="ArrowDown")
        flow.wait(f"{_FOCUSED}.startsWith('Torch.add.')")
        flow.wait(f"!{_TOLD}.includes('Torch.add.{call - 1},')")
    # Two steps around call 20 end before this one.
    assert int(flow.js(f"/Torch.add.(\\d+)/.exec({_FOCUSED})[1]")) >= 25


def test_plus_and_minus_change_how_much_is_shown(flow: Browser) -> None:
    flow.js("document.querySelector('.flow .node.current .box').focus()")
    before = flow.js(_NODES)
    flow.ask("press", key="+")
    flow.wait(f"{_NODES} > {before}")
    flow.ask("press", key="-")
    flow.wait(f"{_NODES} === {before}")
    assert flow.js(_FOCUSED).startswith("Torch.add.20:")


def test_a_call_is_found_by_name_and_its_row_is_linked(flow: Browser) -> None:
    flow.ask("focus", selector=".flow-tools input")
    flow.ask("type", text="ADD.217")
    flow.wait("document.querySelectorAll('.flow-found [role=option]').length === 1")
    flow.ask("click", selector=".flow-found [role=option]")
    flow.wait(f"{_TOLD}.includes('Torch.add.217, call 218')")
    flow.js("document.querySelector('.flow-told a').click()")
    flow.wait("location.hash === '#Torch.add.217'")


def test_a_call_may_open_a_row_of_another_name_or_none(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report_page(path, [all_kinds()], [])

    def link(report: dict[str, Any]) -> None:
        chart = report["views"][0]["model"][1]
        chart["links"] = chart["texts"]

    change_page(path, link)
    browser.open(path)
    browser.wait(f"{_NODES} > 3")
    # Sentences are the links here; calls of an even number have none.
    assert "Torch.add.20" in browser.js(_TOLD)
    assert browser.js("document.querySelector('.flow-told a') === null")
    browser.js("document.querySelector('.flow .node.current .box').focus()")
    browser.ask("press", key="ArrowDown")
    browser.wait(f"{_TOLD}.includes('Torch.add.21')")
    assert (
        browser.js("document.querySelector('.flow-told a').hash") == "#call%2021%20of%20the%20run"
    )


def test_the_box_that_finds_calls_is_used_by_keys(flow: Browser) -> None:
    chosen = "document.querySelector('.flow-found [aria-selected=true]')?.textContent"
    flow.ask("focus", selector=".flow-tools input")
    flow.ask("type", text="add.21")
    flow.wait(f"{chosen}?.endsWith('Torch.add.21')")
    below = flow.js(
        "document.querySelector('.flow-found').getBoundingClientRect().top"
        " - document.querySelector('.flow-tools input').getBoundingClientRect().bottom"
    )
    assert 0 <= below < 12
    assert flow.ask("axe") == []
    flow.ask("press", key="ArrowDown")
    flow.wait(f"{chosen}?.endsWith('Torch.add.210')")
    flow.ask("press", key="Enter")
    flow.wait(f"{_FOCUSED}?.startsWith('Torch.add.210:')")
    assert flow.js("document.querySelector('.flow-found').hidden")
    flow.ask("focus", selector=".flow-tools input")
    flow.ask("type", text="add.5")
    flow.ask("press", key="Escape")
    flow.wait("document.querySelector('.flow-found').hidden")
    flow.ask("type", text="add.5")
    flow.wait("!document.querySelector('.flow-found').hidden")
    flow.js("document.querySelector('.flow .node.current .box').focus()")
    flow.wait("document.querySelector('.flow-found').hidden")


def test_the_graph_says_what_it_shows(flow: Browser) -> None:
    text = flow.js("document.querySelector('.flow').textContent")
    assert "Dashed lines join calls" in text
    assert "arrow keys walk along the lines" in text
    legend = flow.js("document.querySelector('.strip-legend').textContent")
    assert "own error" in legend
    assert "✗ error" in legend
    assert "SKIP" not in legend
    place = flow.js("document.querySelector('.flow-tools select').selectedOptions[0].textContent")
    assert place == "1. ✗ Torch.add.20"
    # How many more there are stands on the border, below all numbers.
    gaps = flow.js(
        "[...document.querySelectorAll('.flow .node')].filter((each) => each.querySelector('.more'))"
        ".map((each) => each.querySelector('.more-box').getBoundingClientRect().top"
        " - Math.max(...[...each.querySelectorAll('.bar-value')].map((value) =>"
        " value.getBoundingClientRect().bottom)))"
    )
    assert gaps
    assert min(gaps) >= 0


def test_a_flow_without_pairs_does_not_speak_of_them(browser: Browser, tmp_path: Path) -> None:
    view = all_kinds()
    chart = replace(flow_of(["a", "b"]), pairs=np.empty((0, 2), np.int64))
    path = tmp_path / "report.html"
    write_report_page(path, [replace(view, model=(chart,))], [])
    browser.open(path)
    browser.wait(f"{_NODES} > 3")
    assert "Dashed" not in browser.js("document.querySelector('.flow').textContent")


def test_the_strip_and_the_buttons_open_elsewhere(flow: Browser) -> None:
    flow.ask("click", selector=".flow .strip canvas")
    flow.wait(f"/call 1[45]\\d of 300/.test({_TOLD})")
    flow.ask("click", selector=".flow-tools button")
    flow.wait(f"{_TOLD}.includes('Torch.add.20, call 21')")


def test_the_table_of_the_shown_calls_is_in_the_order_of_the_run(flow: Browser) -> None:
    flow.js("document.querySelector('.flow details.facts').open = true")
    flow.wait("document.querySelectorAll('.flow .facts tbody tr').length > 3")
    order = flow.js(
        "[...document.querySelectorAll('.flow .facts tbody td:first-child')].map((each) => +each.textContent)"
    )
    assert order == sorted(order)
    assert len(order) == flow.js(_NODES)
