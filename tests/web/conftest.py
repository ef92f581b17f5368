"""What the tests of the page share: browsers, and the pages that they open."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_views import HOSTILE, all_kinds

from ray_precheck.commands.report.page import write_report_page
from scripts.browser import PROGRAMS, Browser, missing


# Of a module, since the processes of a session go on with other tests, beside which a browser takes memory.
@pytest.fixture(scope="module", params=sorted(PROGRAMS))
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    """Return a browser; with --all, as in continuous integration, one that is missing is a failure."""
    if lacks := missing(request.param):
        (pytest.fail if request.config.option.all else pytest.skip)(lacks)
    found = Browser(request.param)
    yield found
    found.close()


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a page with two views that have everything."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report_page(path, [all_kinds(), all_kinds(rows=30, title="mindspore_llm")], ["/tmp/out"])
    return path


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a page whose every text is one that would run, end an element or fill the memory."""
    path = tmp_path_factory.mktemp("hostile") / "report.html"
    write_report_page(path, [all_kinds(HOSTILE), all_kinds(HOSTILE[::-1])], list(HOSTILE[:-1]))
    return path
