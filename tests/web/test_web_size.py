"""The page of many rows and calls: the short form of `python -m scripts.report_size`."""

import re

import pytest

from scripts.browser import Browser
from scripts.measuring import ran

pytestmark = [pytest.mark.web, pytest.mark.timeout(300)]


def test_many_rows_and_calls_are_written_opened_and_searched_in_time(browser: Browser) -> None:
    # A tenth of the rows and calls has the bounds of all of them, and a tenth of the bytes.
    done = ran(
        "scripts.report_size", "--rows", 100_000, "--calls", 10_000, "--browser", browser.name
    )
    found = re.search(r"\| the page \| ([\d.]+) MB", done.printed)
    assert found, done.printed
    assert float(found[1]) < 2.0
