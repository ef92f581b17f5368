"""The rows of the page in Chromium and Firefox: search, filters, order, links, keys, copies."""

from pathlib import Path

import pytest

from scripts.browser import Browser

pytestmark = [pytest.mark.web, pytest.mark.timeout(120)]

_CELLS = (
    "[...document.querySelectorAll('regular-table tbody td:nth-child(%d)')]"
    ".map((cell) => cell.textContent)"
)
_NAMES = _CELLS % 1
_COUNT = "document.querySelector('.row-count').textContent"


@pytest.fixture
def rows(browser: Browser, page: Path) -> Browser:
    """Return a browser whose page shows 500 rows."""
    browser.open(page)
    browser.wait("document.querySelectorAll('regular-table tbody tr').length > 5")
    return browser


def set_field(browser: Browser, selector: str, value: str, event: str) -> None:
    """Set a field as a user does who leaves it."""
    browser.js(
        f"(() => {{ const field = document.querySelector({selector!r}); field.value = {value!r};"
        f" field.dispatchEvent(new Event({event!r}, {{ bubbles: true }})); }})()"
    )


def test_a_search_finds_in_all_columns(rows: Browser) -> None:
    rows.ask("focus", selector=".row-tools input")
    rows.ask("type", text="MATMUL.49.")
    rows.wait(f"{_COUNT}.startsWith('1 of 500 rows')")
    rows.wait(f"{_NAMES}.join() === 'Torch.matmul.49.forward.output.0'")
    rows.ask("click", selector=".row-tools button")
    rows.wait(f"{_COUNT} === '500 rows'")
    rows.ask("type", text="bfloat")
    rows.wait(f"{_COUNT}.startsWith('250 of 500 rows')")


def test_filters_hold_together(rows: Browser) -> None:
    rows.js("document.querySelector('.filters').open = true")
    status = ".filter-fields label:nth-of-type(4) select"
    assert "✗ error" in rows.js(f"document.querySelector({status!r}).textContent")
    set_field(rows, status, "=error", "change")
    rows.wait(f"{_COUNT}.startsWith('125 of')")
    set_field(rows, ".filter-fields fieldset input", "50", "change")
    rows.wait(f"{_COUNT}.startsWith('9 of')")
    set_field(rows, ".filter-fields label:nth-of-type(1) input", "MUL.9", "input")
    rows.wait(
        f"{_COUNT}.startsWith('1 of') || {_COUNT}.startsWith('0 of') || {_COUNT}.startsWith('2 of')"
    )


def test_rows_are_ordered_by_a_column(rows: Browser) -> None:
    rows.ask("click", selector="regular-table thead th:nth-child(4) button")
    rows.wait(
        "document.querySelector('regular-table th:nth-child(4)').getAttribute('aria-sort') === 'ascending'"
    )
    numbers = _CELLS % 4
    rows.wait(f"+{numbers}[0] === 0.00001")
    rows.ask("click", selector="regular-table thead th:nth-child(4) button")
    rows.wait(f"isNaN(+{numbers}[0])")
    rows.ask("click", selector="regular-table thead th:nth-child(4) button")
    rows.wait(f"{_NAMES}[1] === 'Torch.matmul.1.forward.output.0'")


def test_a_link_goes_to_its_row_in_its_table_and_view(browser: Browser, page: Path) -> None:
    browser.open(page, hash="Torch.matmul.321")
    browser.wait(
        "document.querySelector('tr.wanted')?.textContent.startsWith('Torch.matmul.321.forward')"
    )
    assert browser.js("document.activeElement.tagName") == "REGULAR-TABLE"
    assert browser.js("document.activeElement.getAttribute('aria-activedescendant')") == browser.js(
        "document.querySelector('tr.wanted').id"
    )
    top = browser.js("document.querySelector('tr.wanted').getBoundingClientRect().top")
    assert 0 < top < 900
    browser.js("location.hash = 'step0/rank1/Torch.matmul.7'")
    browser.wait(
        "document.querySelector('tr.wanted')?.textContent.startsWith('Torch.matmul.7.forward')"
    )
    assert "of rank 1" in browser.js(
        "document.querySelector('#rows button[aria-current]').textContent"
    )
    # The call of a table is meant by what names one of its outputs, too.
    browser.js("location.hash = 'step0/rank1/Torch.matmul.9.forward.output.0.more'")
    browser.wait("document.querySelector('tr.wanted')?.textContent.startsWith('Torch.matmul.9.f')")
    browser.js("location.hash = 'nobody'")
    browser.wait("document.querySelector('.rows .note')?.textContent.includes('is named nobody')")


def test_a_link_shows_its_row_where_a_search_and_a_filter_hide_it(rows: Browser) -> None:
    rows.js("document.querySelector('.filters').open = true")
    set_field(rows, ".filter-fields label:nth-of-type(4) select", "=error", "change")
    rows.wait(f"{_COUNT}.startsWith('125 of')")
    rows.ask("focus", selector=".row-tools input")
    rows.ask("type", text="MATMUL.49.")
    rows.wait(f"{_COUNT}.startsWith('1 of')")
    rows.js("location.hash = 'Torch.matmul.50'")
    rows.wait(
        "document.querySelector('tr.wanted')?.textContent.startsWith('Torch.matmul.50.forward')"
    )


def test_keys_walk_over_the_rows(rows: Browser) -> None:
    rows.ask("focus", selector="regular-table")
    current = "document.querySelector('tr.current')?.textContent.split('.forward')[0]"
    for key, name in (
        ("ArrowDown", "0"),
        ("ArrowDown", "1"),
        ("End", "499"),
        ("ArrowUp", "498"),
        ("Home", "0"),
    ):
        rows.ask("press", key=key)
        rows.wait(f"{current} === 'Torch.matmul.{name}'")
    rows.ask("press", key="PageDown")
    rows.wait(f"{current} !== 'Torch.matmul.0'")
    rows.ask("press", key="Enter")
    rows.wait("location.hash.startsWith('#Torch.matmul.')")
    assert rows.js("document.querySelectorAll('.one-row dd').length") == 6


def test_a_click_on_a_name_is_a_link(rows: Browser) -> None:
    rows.js("document.querySelector('regular-table tbody tr:nth-child(3) a').click()")
    rows.wait("location.hash === '#Torch.matmul.2.forward.output.0'")


def test_what_is_shown_is_copied_as_csv(rows: Browser) -> None:
    rows.js(
        "document.execCommand = () => { window.copied = document.activeElement.value; return true; };"
        "Object.defineProperty(navigator, 'clipboard', { value: undefined })"
    )
    rows.ask("focus", selector=".row-tools input")
    rows.ask("type", text="matmul.49.")
    rows.wait(f"{_COUNT}.startsWith('1 of')")
    rows.ask("click", selector=".row-tools button:nth-of-type(2)")
    rows.wait("document.querySelector('.rows .note')?.textContent === 'Copied: 1 row.'")
    head, row, end = rows.js("window.copied").split("\n")
    assert head.strip().split(",")[0] == "API Name"
    assert row.strip() == 'Torch.matmul.49.forward.output.0,bfloat16,"(4, 8)",59,error,case 4'
    assert end == ""


def test_what_is_shown_is_downloaded_as_csv(rows: Browser) -> None:
    rows.js(
        "URL.createObjectURL = (blob) => { window.saved = blob; return 'blob:x'; };"
        "HTMLAnchorElement.prototype.click = function () { window.file = this.download; }"
    )
    rows.ask("click", selector=".row-tools button:nth-of-type(3)")
    assert rows.js("window.file") == "details.csv"
    assert rows.js("window.saved.text().then((text) => text.split('\\r\\n').length)") == 502
