"""The command line of report: what it refuses, each in one sentence."""

from pathlib import Path

import pytest

from ray_precheck.cli import main

pytestmark = pytest.mark.unit
STAMP = "20260101120000"


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["report", *map(str, words)]) == 2
    said = capsys.readouterr().err.strip()
    assert "\n" not in said
    return said.removeprefix("ray-precheck: error: ")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / f"naive_{STAMP}.csv").touch()
    return tmp_path / "out"


def test_another_file_is_not_overwritten(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("notes.html", "data.json", "page.md"):
        path = tmp_path / name
        path.write_text("mine")
        kind = path.suffix[1:]
        assert refused(capsys, out, "-o", path) == (
            f"-o {path} is there and is no {kind} page of report; name another file, or remove it first"
        )
        assert path.read_text() == "mine"
    assert "is a folder; name a file in it" in refused(capsys, out, "-o", tmp_path)
    assert "is not there; make it first" in refused(capsys, out, "-o", tmp_path / "no" / "r.html")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--format", "pdf"), "--format 'pdf' is unknown; expected one of: html, json, md"),
        (
            ("--format", "md", "-o", "x.html"),
            "-o x.html is the name of a html file, and --format is md",
        ),
        (("-o", "-"), "-o - writes to the screen; name --format md or json for it"),
        (("b", "c"), "report compares two results; 3 are given: "),
    ],
)
def test_wrong_words_are_refused(
    out: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, out, *words).startswith(said)


def test_folders_without_results_and_nonsense_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "has no result files; looked for" in refused(capsys, tmp_path)
    assert "there is no folder" in refused(capsys, tmp_path / "none")
    assert "is no result file" in refused(capsys, __file__)


def test_a_table_with_other_columns_is_refused(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (out / f"naive_{STAMP}.csv").write_bytes(b"\x00\xff\xfe\r\n1\r\n")
    said = refused(capsys, out)
    assert said.startswith(
        f"report: cannot read {out}/naive_{STAMP}.csv: its first line must be API Name,"
    )
