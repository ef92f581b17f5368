"""The graph of the page in Chromium and Firefox: where it opens, what a click and the keys do."""

from pathlib import Path

import pytest

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


def test_a_call_is_found_by_name_and_its_row_is_linked(flow: Browser) -> None:
    flow.ask("focus", selector=".flow-tools input")
    flow.ask("type", text="ADD.217")
    flow.wait("document.querySelectorAll('.flow-found button').length === 1")
    flow.ask("click", selector=".flow-found button")
    flow.wait(f"{_TOLD}.includes('Torch.add.217, call 218')")
    flow.js("document.querySelector('.flow-told a').click()")
    flow.wait("location.hash === '#Torch.add.217'")


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
