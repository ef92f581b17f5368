"""The rows of the page in Chromium and Firefox: search, filters, order, links, keys, copies."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_views import all_kinds, change_page

from ray_precheck.commands.report.page import write_report_page
from ray_precheck.schema.view import CellKind, RowColumn, RowTable, Tone
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
    # What stands above the rows moves them while it is drawn.
    browser.wait(
        "document.querySelectorAll('regular-table tbody tr').length > 5"
        " && document.querySelector('.flow .node')"
    )
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
    rows.ask("click", selector=".row-tools button:nth-of-type(2)")
    rows.wait(f"{_COUNT} === '500 rows'")
    rows.ask("type", text="bfloat")
    rows.wait(f"{_COUNT}.startsWith('250 of 500 rows')")


def test_a_search_finds_all_its_words_and_stays_with_another_table(rows: Browser) -> None:
    rows.ask("focus", selector=".row-tools input")
    rows.ask("type", text="error matmul.1 bfloat16")
    rows.wait(f"{_COUNT}.startsWith('28 of 500 rows')")
    rows.ask("click", selector="#rows nav.views button:nth-child(2)")
    rows.wait(f"{_COUNT}.startsWith('3 of 40 rows')")
    assert rows.js("document.querySelector('.row-tools input').value") == "error matmul.1 bfloat16"


def test_a_button_leaves_the_rows_in_error(rows: Browser) -> None:
    button = ".row-tools button[aria-pressed]"
    rows.ask("click", selector=button)
    rows.wait(f"{_COUNT}.startsWith('125 of 500 rows')")
    rows.wait(f"{_CELLS % 5}.every((cell) => cell === '✗ error')")
    rows.ask("click", selector=button)
    rows.wait(f"{_COUNT} === '500 rows'")


def test_more_than_a_few_texts_are_no_choice(rows: Browser) -> None:
    rows.js("document.querySelector('.filters').open = true")
    fields = rows.js(
        "[...document.querySelectorAll('.filter-fields > label')].map((each) =>"
        " each.firstChild.textContent + ': ' + each.lastElementChild.tagName)"
    )
    assert "Message: INPUT" in fields
    assert "Tested Dtype: SELECT" in fields


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
        "document.querySelector('regular-table th:nth-child(4)').getAttribute('aria-sort') === 'descending'"
    )
    numbers = _CELLS % 4
    # NaN is the worst there is; ten rows have it.
    rows.wait(f"isNaN(+{numbers}[9]) && +{numbers}[10] === 98")
    rows.ask("click", selector="regular-table thead th:nth-child(4) button")
    rows.wait(f"+{numbers}[0] === 0.00001")
    rows.ask("click", selector="regular-table thead th:nth-child(4) button")
    rows.wait(f"{_NAMES}[1] === 'Torch.matmul.1.forward.output.0'")


def test_a_link_goes_to_its_row_in_its_table_and_view(browser: Browser, page: Path) -> None:
    browser.open(page, hash="Torch.matmul.321")
    browser.wait(
        "document.querySelector('tr.wanted')?.textContent.startsWith('Torch.matmul.321.forward')"
    )
    browser.wait("document.activeElement.tagName === 'REGULAR-TABLE'")
    browser.wait(
        "document.activeElement.getAttribute('aria-activedescendant') ==="
        " document.querySelector('tr.wanted').id"
    )
    top = "document.querySelector('tr.wanted').getBoundingClientRect().top"
    browser.wait(f"0 < {top} && {top} < 900")
    browser.js("location.hash = 'step0/rank1/Torch.matmul.7'")
    browser.wait(
        "document.querySelector('tr.wanted')?.textContent.startsWith('Torch.matmul.7.forward')"
    )
    browser.wait(
        "document.querySelector('#rows button[aria-current]').textContent.includes('of rank 1')"
    )
    # The call of a table is meant by what names one of its outputs, too.
    browser.js("location.hash = 'step0/rank1/Torch.matmul.9.forward.output.0.more'")
    browser.wait("document.querySelector('tr.wanted')?.textContent.startsWith('Torch.matmul.9.f')")
    # A call without a row is not taken for another one of its library.
    told = "document.querySelector('.missing-row')?.textContent ?? ''"
    for name in ("nobody", "Torch.nobody.20.forward"):
        browser.js(f"location.hash = '{name}'")
        browser.wait(f"{told}.startsWith('No row is named {name}.')")
    assert browser.ask("axe") == []
    browser.js("location.hash = 'Torch.matmul.5'")
    browser.wait(f"{told} === ''")


def test_a_linked_row_is_in_the_window_after_all_is_drawn(browser: Browser, page: Path) -> None:
    browser.open(page, hash="Torch.matmul.321")
    browser.wait("document.querySelector('tr.wanted') && document.querySelector('.flow .node')")
    browser.js("new Promise((done) => setTimeout(done, 500))")
    top = browser.js("document.querySelector('tr.wanted').getBoundingClientRect().top")
    assert browser.js("document.querySelector('.top').offsetHeight") < top < 900


def test_a_link_says_where_a_search_and_a_filter_hide_its_row(rows: Browser) -> None:
    rows.js("document.querySelector('.filters').open = true")
    set_field(rows, ".filter-fields label:nth-of-type(4) select", "=error", "change")
    rows.wait(f"{_COUNT}.startsWith('125 of')")
    rows.ask("focus", selector=".row-tools input")
    rows.ask("type", text="MATMUL.49.")
    rows.wait(f"{_COUNT}.startsWith('1 of')")
    rows.js("location.hash = 'Torch.matmul.50'")
    rows.wait(
        "document.querySelector('.lost')?.textContent.includes('Torch.matmul.50 of the link')"
    )
    assert rows.js(_COUNT).startswith("1 of")
    rows.ask("click", selector=".lost button")
    rows.wait(
        "document.querySelector('tr.wanted')?.textContent.startsWith('Torch.matmul.50.forward')"
    )
    # One that is shown leaves the search as it is.
    rows.ask("focus", selector=".row-tools input")
    rows.ask("type", text="MATMUL.49")
    rows.wait(f"{_COUNT}.startsWith('11 of')")
    rows.js("location.hash = 'Torch.matmul.491'")
    rows.wait("document.querySelector('tr.wanted')?.textContent.startsWith('Torch.matmul.491')")
    assert rows.js(_COUNT).startswith("11 of")
    assert rows.js("document.querySelector('.lost') === null")


@pytest.fixture(scope="session")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a page whose rows share their names; a hidden column has the full ones."""
    columns = (
        RowColumn("full", CellKind.NAME),
        RowColumn("Step", CellKind.NUMBER),
        RowColumn("API Name", CellKind.NAME),
    )
    cells = tuple(
        (f"{step}/Torch.add.{way}", str(step), "Torch.add") for step in range(9) for way in "fb"
    )
    path = tmp_path_factory.mktemp("twice") / "report.html"
    write_report_page(
        path, [replace(all_kinds(), tables=(RowTable("calls", columns, rows=cells),))], []
    )

    def hide(report: dict[str, Any]) -> None:
        report["views"][0]["tables"][0]["columns"][0]["hidden"] = True

    change_page(path, hide)
    return path


def test_rows_that_share_a_name_are_linked_and_found_by_full_names_that_nobody_sees(
    browser: Browser, twice: Path
) -> None:
    wanted = "document.querySelector('tr.wanted')?.getAttribute('aria-rowindex')"
    browser.open(twice, hash="3/Torch.add.b")
    browser.wait(f"{wanted} === '9'")
    heads = browser.js(
        "[...document.querySelectorAll('regular-table thead th')].map((each) => each.textContent)"
    )
    assert heads == ["Step", "API Name"]
    links = browser.js("[...document.querySelectorAll('regular-table a')].map((each) => each.hash)")
    assert links[:3] == ["#0%2FTorch.add.f", "#0%2FTorch.add.b", "#1%2FTorch.add.f"]
    # One who does not know of them finds the first.
    browser.js("location.hash = 'Torch.add'")
    browser.wait(f"{wanted} === '2'")
    browser.ask("focus", selector=".row-tools input")
    browser.ask("type", text="4/ .b")
    browser.wait(f"{_COUNT}.startsWith('1 of 18 rows')")


def test_a_cell_that_is_clicked_gives_the_address_of_its_row(rows: Browser) -> None:
    rows.ask("click", selector="regular-table tbody tr:nth-child(4) td:nth-child(3)")
    rows.wait("location.hash === '#Torch.matmul.3.forward.output.0'")
    rows.js(
        "document.execCommand = () => { window.copied = document.activeElement.value; return true; };"
        "Object.defineProperty(navigator, 'clipboard', { value: undefined })"
    )
    rows.ask("click", selector=".one-row button")
    rows.wait("document.querySelector('.one-row button').textContent === 'copied'")
    assert rows.js("window.copied === location.href")


def test_a_long_message_is_whole_in_the_detail_and_wide_in_the_table(
    browser: Browser, tmp_path: Path
) -> None:
    message = "the error is far beyond its limit; " * 40
    columns = (RowColumn("API Name", CellKind.NAME), RowColumn("Message", CellKind.TEXT))
    path = tmp_path / "report.html"
    table = RowTable("calls", columns, rows=(("Torch.add.0", message),))
    write_report_page(path, [replace(all_kinds(), tables=(table,))], [])
    browser.open(path, hash="Torch.add.0", width=1300)
    browser.wait("document.querySelector('.one-row')")
    assert (
        browser.js("document.querySelector('.one-row dd:last-child').textContent") == "Torch.add.0"
    )
    assert message in browser.js("document.querySelector('.one-row').textContent")
    detail = "document.querySelector('.one-row')"
    assert browser.js(f"{detail}.scrollWidth <= {detail}.clientWidth")
    # Where 34rem were the most, 510 pixels.
    browser.wait("document.querySelector('regular-table td:last-child').offsetWidth > 900")
    grid = "document.querySelector('regular-table')"
    assert browser.js(f"{grid}.scrollWidth <= {grid}.clientWidth")


def test_of_each_table_the_rows_in_error_are_printed(
    browser: Browser, page: Path, tmp_path: Path
) -> None:
    browser.open(page)
    browser.wait("document.querySelectorAll('regular-table tbody tr').length > 5")
    browser.js("new Promise((done) => setTimeout(done, 1200))")
    browser.js(
        "addEventListener('beforeprint', () => { window.printed = ["
        " [...document.querySelectorAll('.printed table')].map((each) => each.tBodies[0].rows.length),"
        " [...document.querySelectorAll('.printed p')].map((each) => each.textContent),"
        " [...document.querySelectorAll('.card details:not(.facts)')].every((each) => each.open),"
        " document.querySelectorAll('.printed table:first-of-type th').length ]; })"
    )
    browser.ask("pdf", path=str(tmp_path / "report.pdf"))
    counts, said, are_open, columns = browser.js("window.printed")
    assert counts == [125, 10]
    assert said == ["All 125 rows in error, of 500 rows.", "All 10 rows in error, of 40 rows."]
    assert are_open
    assert columns == 6
    assert browser.js("document.querySelectorAll('.printed').length") == 0


def test_where_no_row_is_in_error_the_first_are_printed(browser: Browser, tmp_path: Path) -> None:
    columns = (RowColumn("API Name", CellKind.NAME), RowColumn("Status", CellKind.TONE))
    cells = tuple((f"Torch.add.{index}", "pass") for index in range(120))
    path = tmp_path / "report.html"
    table = RowTable("calls", columns, rows=cells, tones={"pass": Tone.PASS})
    write_report_page(path, [replace(all_kinds(), tables=(table,))], [])
    browser.open(path)
    browser.wait("document.querySelectorAll('regular-table tbody tr').length > 5")
    browser.js("dispatchEvent(new Event('beforeprint'))")
    browser.wait("document.querySelectorAll('.printed tbody tr').length === 100")
    assert (
        browser.js("document.querySelector('.printed p').textContent")
        == "The first 100 of 120 rows."
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
    rows.ask("click", selector=".row-tools button:nth-of-type(3)")
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
    rows.ask("click", selector=".row-tools button:nth-of-type(4)")
    assert rows.js("window.file") == "details.csv"
    assert rows.js("window.saved.text().then((text) => text.split('\\r\\n').length)") == 502
