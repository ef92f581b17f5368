"""The pages of real results of every command, in Chromium and Firefox."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ray_precheck.commands.report.found import VIEWERS
from scripts.browser import Browser

pytestmark = [pytest.mark.web, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
CAPTURE = ROOT / "tests/data/torch_llm_tensor"
WRONG = "Functional.silu.0.forward.output.0"
# The views of each folder of results.
COMMANDS = {
    "run_ut": ["run_ut"],
    "diagnose": ["diagnose", "locate", "compare", "run_ut", "overflow_check"],
    "naive": ["naive"],
    "overflow": ["overflow_check"],
    "bisect": ["bisect"],
    "compare_results": ["compare_results"],
    "ranks": ["ranks"],
}


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the page of each command's results: of a transformer whose silu is half too
    large, and of a command that a switch makes fail."""
    folder = tmp_path_factory.mktemp("commands")
    shutil.copytree(CAPTURE, folder / "good")
    shutil.copytree(CAPTURE, folder / "bad")
    output = folder / "bad/dump_tensor_data" / f"{WRONG}.pt"
    torch.save(torch.load(output) * 1.5, output)
    _two_ranks(folder / "ranks_of_one_run")
    script = folder / "fails.sh"
    script.write_text('#!/bin/sh\ntest "$FAULT" != 1\n')
    script.chmod(0o755)
    runs = {
        "run_ut": ["run_ut", "-api_info", "bad/dump.json"],
        "diagnose": ["diagnose", "-tp", "bad/dump.json", "-gp", "good/dump.json"],
        "naive": ["naive", "good/dump.json", "-k", "silu"],
        "overflow": ["overflow_check", "bad/dump.json", "--headroom"],
        "bisect": ["bisect", "run", "--switch", "env:FAULT=1|0", "--switch", "env:OTHER=1|0"],
        "ranks": ["ranks", "ranks_of_one_run", "--layout", "tp=2"],
    }
    for out, words in runs.items():
        program = ["--", str(script)] if out == "bisect" else []
        _run(folder, *words, "-o", out, *program)
    details = str(next((folder / "run_ut").glob("*_details_*.csv")))
    _run(folder, "compare_results", details, details, "-o", "compare_results")
    for out in COMMANDS:
        _run(folder, "report", out)
    _run(folder, "report", "run_ut", "diagnose", "-o", "two.html")
    return folder


def _two_ranks(folder: Path) -> None:
    """Write the captures of two ranks, of which the silu of one is half too large."""
    for rank in range(2):
        path = folder / f"step0/rank{rank}/dump.json"
        path.parent.mkdir(parents=True)
        dump = json.loads((CAPTURE / "dump.json").read_text())
        (output,) = dump["data"][WRONG.removesuffix(".output.0")]["output"]
        for statistic in ("Max", "Min", "Mean", "Norm"):
            output[statistic] *= 1 + rank / 2
        path.write_text(json.dumps(dump))


def _run(folder: Path, *words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ray_precheck", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), f"{words}: {done.stdout}{done.stderr}"


def test_every_command_that_has_a_view_is_here() -> None:
    assert {viewer.room for viewer in VIEWERS} <= {*COMMANDS, "locate", "compare", "precheck"}


@pytest.mark.parametrize("name", [*COMMANDS, "two"])
def test_each_view_opens_without_error_and_its_links_lead_to_rows(
    browser: Browser, reports: Path, name: str
) -> None:
    page = reports / "two.html" if name == "two" else reports / name / "report.html"
    browser.open(page)
    views = browser.js(
        "[...document.querySelectorAll('.top nav.views button .badge')].map((each) => each.textContent)"
    )
    if name != "two":
        assert [view.split()[-1] for view in views] == COMMANDS[name][len(COMMANDS[name]) == 1 :]
    for view in range(max(1, len(views))):
        browser.open(page)
        if views:
            browser.ask("click", selector=f".top nav.views button:nth-child({view + 1})")
        browser.wait("document.querySelectorAll('.waiting').length === 0")
        browser.js("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        assert browser.ask("axe") == []
        links = browser.js(
            "[...new Set([...document.querySelectorAll('.card h3 a, figure a')].map((each) => each.hash))]"
        )
        for link in links[:8]:
            browser.js(f"location.hash = {link!r}")
            browser.wait("document.querySelector('tr.wanted, .missing-row')")
            assert browser.js("document.querySelector('.missing-row')?.textContent ?? ''") == ""
            browser.js("location.hash = '#/head'")
        heard = browser.ask("heard")
        assert heard["errors"] == heard["violations"] == []
        assert [each for each in heard["requests"] if not each.startswith(page.as_uri())] == []


def test_the_culprit_its_error_and_its_row_stand_on_the_first_card(
    browser: Browser, reports: Path
) -> None:
    browser.open(reports / "run_ut/report.html")
    card = browser.js("document.querySelector('.card').textContent")
    assert "Functional.silu.0" in card
    assert "5,000 times its limit" in card
    browser.js("document.querySelector('.card h3 a').click()")
    browser.wait("document.querySelector('tr.wanted')")
    assert "Functional.silu.0" in browser.js("document.querySelector('tr.wanted').textContent")
