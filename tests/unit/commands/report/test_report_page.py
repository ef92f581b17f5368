"""The page: what a browser would read of it, without one."""

import base64
import dataclasses
import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_samples import COLUMNS, TONES, sample_view

from ray_precheck.commands.report.page import page_data, page_pieces, write_report_page
from ray_precheck.errors import UsageError
from ray_precheck.schema.view import (
    BlockMaxima,
    Card,
    CellKind,
    FlowGraph,
    HeatMap,
    RowColumn,
    RowTable,
    Tone,
    View,
    ViewState,
)

pytestmark = pytest.mark.unit
HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "javascript:alert(1)",
    "\u202eabc\u2066",
    "a\x00b\u2028c\ud800",
    "x" * 1_000_000,
)


def written(tmp_path: Path, *views: View) -> str:
    path = tmp_path / "report.html"
    write_report_page(path, views, ["out"])
    return path.read_text("utf-8")


def elements(page: str) -> dict[str, str]:
    """Return the texts of the elements that have data, as a parser of HTML finds them."""
    found = re.findall(r'<script type="([^"]*)" id="([^"]*)">(.*?)</script>', page, re.DOTALL)
    assert {kind for kind, _, _ in found} <= {"application/json", "text/plain"}
    return {name: text for _, name, text in found}


def values(texts: dict[str, str], blob: dict[str, Any]) -> Any:
    data = gzip.decompress(base64.b64decode(texts[f"b{blob['blob']}"]))
    if blob["dtype"] == "strings":
        return data.decode().split("\0") if blob["length"] else []
    found = np.frombuffer(data, blob["dtype"])
    assert len(found) == blob["length"]
    return found


def cells(texts: dict[str, str], table: dict[str, Any]) -> list[list[Any]]:
    """Return the columns of a table as the page shows them."""
    columns = []
    for column in table["columns"]:
        words = values(texts, column["words"])
        if column["kind"] == "number":
            words = [*values(texts, column["values"]), *words]
        codes = values(texts, column["codes"]) if column["codes"] else range(len(words))
        columns.append([words[code] for code in codes])
    return columns


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    view = sample_view(1000)
    texts = elements(written(tmp_path, view))
    (table,) = json.loads(texts["report"])["views"][0]["tables"]
    names, dtypes, errors, status = cells(texts, table)
    assert table["rows"] == 1000
    assert tuple(zip(names, dtypes, status, strict=True)) == tuple(
        (row[0], row[1], row[3]) for row in view.tables[0].rows
    )
    assert errors == pytest.approx([i / 7 for i in range(1000)], rel=0.0051)
    assert table["tones"]["SKIP"] == "skip"


def test_rows_whose_cells_are_alike_have_full_names_in_a_column_that_is_not_shown(
    tmp_path: Path,
) -> None:
    columns = (*COLUMNS[:2], RowColumn("Step", CellKind.NUMBER), RowColumn("Way", CellKind.TEXT))
    rows = (("Mint.a.0", "f", "0", "forward"), ("Mint.a.0", "f", "1", ""))
    table = RowTable("t", columns, rows=rows, name_parts=(2,), name_ends=(3,))
    view = dataclasses.replace(sample_view(), tables=(table,))
    texts = elements(written(tmp_path, view))
    (found,) = json.loads(texts["report"])["views"][0]["tables"]
    assert (found["key"], len(found["columns"])) == (4, 5)
    assert [each.get("hidden") for each in found["columns"]] == [False, False, None, False, True]
    assert values(texts, found["columns"][4]["words"]) == ["0/Mint.a.0.forward", "1/Mint.a.0"]


def test_calls_of_a_graph_have_the_rows_that_they_open(tmp_path: Path) -> None:
    def encoded(view: View) -> tuple[dict[str, str], Any]:
        texts = elements(written(tmp_path, view))
        (found,) = json.loads(texts["report"])["views"][0]["model"]
        return texts, found["links"]

    (graph,) = (chart for chart in sample_view().model if isinstance(chart, FlowGraph))
    assert encoded(dataclasses.replace(sample_view(), model=(graph,)))[1] is None
    rows = tuple(f"0/1/{name}" for name in graph.names)
    linked = dataclasses.replace(graph, links=rows)
    texts, found = encoded(dataclasses.replace(sample_view(), model=(linked,)))
    assert values(texts, found) == list(rows)


def test_cells_that_are_no_numbers_stay_words(tmp_path: Path) -> None:
    rows = (
        ("a", "", "1.5", "pass"),
        ("b", "", "N/A", "x"),
        ("c", "", "inf", ""),
        ("d", "", "nan", ""),
    )
    table = RowTable("t", COLUMNS, rows=rows, tones=TONES)
    view = View("c", "", "s", Tone.PASS, ViewState.FINISHED, tables=(table,))
    texts = elements(written(tmp_path, view))
    (found,) = json.loads(texts["report"])["views"][0]["tables"]
    assert cells(texts, found)[2] == [1.5, "N/A", np.inf, "nan"]


def test_names_of_a_file_are_decoded(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b'\xef\xbb\xbfAPI Name\r\n\'=x\r\na\\u000ab\r\n"q,""r"\r\n')
    table = RowTable("t", (RowColumn("API Name", CellKind.NAME),), path)
    view = View("c", "", "s", Tone.PASS, ViewState.FINISHED, tables=(table,))
    texts = elements(written(tmp_path, view))
    (found,) = json.loads(texts["report"])["views"][0]["tables"]
    assert cells(texts, found)[0] == ["=x", "a\nb", 'q,"r']


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:12]))
def test_no_text_of_a_dump_is_part_of_the_html(tmp_path: Path, text: str) -> None:
    honest = written(tmp_path, sample_view(20))
    page = written(tmp_path, sample_view(20, text))
    tags = re.compile(r"<[a-zA-Z/!][^>]{0,40}")
    own = set(tags.findall(honest))
    assert [tag for tag in tags.findall(page) if tag not in own and 'id="b' not in tag] == []
    assert len(elements(page)) == len(elements(honest))
    assert json.loads(elements(page)["report"])["views"][0]["sentence"].startswith("10 of 100")


def test_only_the_script_and_the_style_of_the_page_may_run(tmp_path: Path) -> None:
    page = written(tmp_path, sample_view(20))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    for name, text in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in rules[name].split()
        assert "unsafe" not in rules[name]
    assert rules["default-src"] == rules["connect-src"] == "'none'"
    assert re.findall(r"(?:src|href)=[\"']?(?:https?:)?//", page) == []


def test_a_page_that_follows_may_ask_its_own_server_alone(tmp_path: Path) -> None:
    page = b"".join(page_pieces(page_data([sample_view(20)], ["out"], follow_s=2.0))).decode()
    assert "connect-src 'self'" in page
    assert "connect-src 'none'" not in page


def test_the_licences_of_what_is_bundled_stand_in_the_page(tmp_path: Path) -> None:
    page = written(tmp_path, sample_view(20))
    for name in ("preact", "regular-table", "uplot", "@dagrejs/dagre"):
        assert re.search(rf"{re.escape(name)} \d+\.\d+\.\d+ \((?:MIT|Apache-2.0)\)", page)
    assert "THE SOFTWARE IS PROVIDED" in page


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"-o: cannot write .*none/report\.html: No such file"):
        write_report_page(tmp_path / "none" / "report.html", [sample_view(20)], ["out"])


def test_an_infinite_error_is_told_from_no_value() -> None:
    heat = HeatMap("h", "times", ("r",), ("a", "b", "c"), np.array([[2.5, np.inf, np.nan]]))
    blocks = BlockMaxima("b", "times", (3,), np.array([[np.inf, np.nan, 0.0]]), 1.0)
    card = Card("Mint.add.0", Tone.ERROR, "why", blocks=blocks)
    view = View("run_ut", "t", "s", Tone.ERROR, ViewState.FINISHED, cards=(card,), overview=(heat,))
    (found,) = page_data([view], ["out"]).report["views"]
    largest = np.finfo(np.float64).max
    assert found["overview"][0]["values"] == [[2.5, largest, None]]
    assert found["cards"][0]["blocks"]["values"] == [[largest, None, 0.0]]


def test_a_text_that_nobody_reads_is_cut(tmp_path: Path) -> None:
    page = written(tmp_path, sample_view(100, "x" * 1_000_000))
    assert len(page) < 4_000_000
    assert "characters)" in page
