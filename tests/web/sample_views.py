"""Views with everything that a page can show, and with the names that a hostile dump would have."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.commands.report.page import script_json
from ray_precheck.schema.view import (
    Advice,
    Bar,
    BlockMaxima,
    Card,
    CellKind,
    ChartLine,
    ChartStep,
    CodeLine,
    Count,
    Fact,
    FlowGraph,
    HeatMap,
    Histogram,
    LineChart,
    ModuleNode,
    ModuleTree,
    NotCompared,
    RowColumn,
    RowTable,
    StepChart,
    TimelineChart,
    Tone,
    View,
    ViewState,
)
from ray_precheck.store.tables import encode_name

LONG = "x" * 1_000_000
# What would run, end an element, turn the direction of a text or fill the memory, were it taken for more
# than a name. `ran` is what it would set.
HOSTILE = (
    "<script>window.ran=1</script>",
    "</script><script>window.ran=2</script>",
    "<!--",
    "<!--<script>",
    "]]>",
    "javascript:window.ran=3",
    "<img src=x onerror=window.ran=4>",
    "\"onmouseover='window.ran=5'",
    "\u202egnp.exe\u202c \u2066isolated\u2069",
    "</style><style>*{display:none}</style>",
    "'; window.ran=6; '",
    "{{constructor.constructor('window.ran=7')()}}",
    "=cmd()|' /C calc'!A0",
    "%3Cscript%3E",
    "\x00\x1b[31m\u2028\u2029",
    LONG,
)
TONES = {"pass": Tone.PASS, "error": Tone.ERROR, "warning": Tone.WARNING, "SKIP": Tone.SKIP}
_WORDS = tuple(TONES)
COLUMNS = (
    RowColumn("API Name", CellKind.NAME),
    RowColumn("Tested Dtype", CellKind.TEXT),
    RowColumn("Shape", CellKind.TEXT),
    RowColumn("MaxRelativeErr", CellKind.NUMBER),
    RowColumn("Status", CellKind.TONE),
    RowColumn("Message", CellKind.TEXT),
)


def all_kinds(names: tuple[str, ...] = (), *, rows: int = 500, title: str = "torch_llm") -> View:
    """Return a view with every kind of part; `names` stand wherever a text of a dump may stand."""
    said = names or ("Torch.matmul.1.forward.output.0", "model.layers.0.mlp", "a message")
    each = [said[index % len(said)] for index in range(64)]
    return View(
        command="run_ut" if not names else each[0],
        title=title if not names else each[1],
        sentence="3 of 500 calls are in error." if not names else each[2],
        tone=Tone.ERROR,
        state=ViewState.STOPPED,
        exit_code=1,
        facts=(Fact("device", "NPU 910B"), Fact(each[3], each[4])),
        invocation="ray-precheck run_ut -api_info dump.json" if not names else each[5],
        counts=(Count("error", 3, Tone.ERROR), Count("pass", 497, Tone.PASS)),
        reasons=(NotCompared("the dump has no tensors of it", 12, tuple(each[:4])),),
        notes=("The file was cut off.", each[6]),
        cards=tuple(_card(index, each[index : index + 20]) for index in range(4)),
        more_cards=7,
        overview=(_heat(each), _histogram(each[0])),
        model=(_tree(each), flow(each)),
        run=(_timeline(each), _lines(each), _steps(each)),
        tables=(
            table(rows, tuple(names)),
            table(40, tuple(names), label="step0/rank1", title="of rank 1"),
        ),
        advice=(Advice("See the first suspect alone.", ("ray-precheck repro " + each[0],)),),
        files=("/tmp/out/accuracy_checking_result.csv", each[7]),
    )


def change_page(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Write a page again with other data: `change` gets what its script reads."""
    begin, tag, rest = path.read_text("utf-8").partition('id="report">')
    data, _, end = rest.partition("</script>")
    report = json.loads(data)
    change(report)
    path.write_text(f"{begin}{tag}{script_json(report).decode()}</script>{end}", "utf-8")


def table(
    rows: int, names: tuple[str, ...] = (), *, label: str = "", title: str = "details"
) -> RowTable:
    """Return a table of a precheck's columns; `names` are those of its first rows."""
    return RowTable(
        title=title,
        columns=COLUMNS,
        rows=tuple(_row(index, names) for index in range(rows)),
        tones=TONES,
        label=label,
    )


def _row(index: int, names: tuple[str, ...]) -> tuple[str, ...]:
    name = names[index] if index < len(names) else f"Torch.matmul.{index}.forward.output.0"
    error = "nan" if index % 50 == 7 else f"{(index % 90 + 10) * 10.0 ** -(index % 7)!r}"
    message = names[-1 - index] if index < len(names) else f"case {index % 9}"
    return (
        encode_name(name),
        ("float16", "bfloat16")[index % 2],
        "(4, 8)",
        error,
        _WORDS[index % 4],
        message,
    )


def _card(index: int, said: list[str]) -> Card:
    return Card(
        name=said[0],
        tone=Tone.ERROR,
        why=f"Its cosine 0.91 is below 0.999. {said[1][:3000]}",
        row=said[0],
        label="step0/rank1" if index == 3 else "",
        times=float("nan") if index == 1 else 12.5,
        facts=(Fact("Status", said[2]),),
        inputs=(Fact("0", said[3]), Fact("1", "float16 (4, 8), 0.1 to 3")),
        bars=(Bar("cosine", 0.91, 0.999, is_least=True), Bar(said[4], float("inf"), 0.001)),
        histogram=_histogram(said[5]),
        blocks=BlockMaxima(
            said[6], "error / limit", (4, 64), np.array([[0.1, 2.0], [np.nan, 30.0]]), 1.0
        ),
        cause=said[7],
        module=said[8],
        source=said[9],
        code=(CodeLine(1, said[10]), CodeLine(2, "y = torch.matmul(x, w)", is_here=True)),
        reproduce=said[11],
        case=said[12],
        missing=("its dump is not on this machine",),
    )


def _histogram(title: str) -> Histogram:
    return Histogram(title, "relative error", (1e-6, 1e-5, 1e-4, 1e-3, 1e-2), (500, 40, 3, 1), 1e-3)


def _heat(said: list[str]) -> HeatMap:
    return HeatMap(
        said[8],
        "error / limit",
        (said[9], "matmul", "add"),
        ("float16", said[10]),
        np.array([[0.1, 30.0], [np.nan, 1.2], [0.001, 0.9]]),
        {(0, 1): said[0]},
    )


def _tree(said: list[str]) -> ModuleTree:
    return ModuleTree(
        "Modules",
        (
            ModuleNode("model", -1, Tone.ERROR, 500, 3, said[0]),
            ModuleNode(said[1], 0, Tone.ERROR, 20, 3, said[0]),
            ModuleNode(said[2], 1, Tone.PASS, 3, 0),
        ),
    )


def flow(said: list[str], calls: int = 300) -> FlowGraph:
    """Return the flow of a run: a chain with branches; an error begins at call 20."""
    index = np.arange(calls)
    names = tuple(
        said[at] if at < 16 and at < len(said) else f"Torch.add.{at}" for at in range(calls)
    )
    edges = [(at, at + 1) for at in range(calls - 1)] + [
        (at, at + 5) for at in range(0, calls - 5, 3)
    ]
    own = np.where(index == 20, 4.0, np.where(index % 11 == 0, np.nan, 1e-6 * (index % 13)))
    return FlowGraph(
        "The error along the data flow",
        "relative error",
        names,
        np.where(index == 20, 2, np.where(index > 20, 1, 0)).astype(np.uint8),
        own,
        np.where(index > 20, 3.0 / np.maximum(index - 19.0, 1.0), 0.0),
        np.array(edges, np.int64),
        np.array([(18, 22)], np.int64),
        (20, 25),
        tuple(f"call {at} of the run" if at % 2 else "" for at in range(calls)),
    )


def _timeline(said: list[str]) -> TimelineChart:
    return TimelineChart(
        "What ran where",
        ("npu:0", said[3]),
        np.array([0, 1, 0]),
        np.array([0.0, 0.5, 2.0]),
        np.array([1.0, 1.0, 0.25]),
        (said[0], said[1], "Torch.add.3"),
        np.array([0, 1, 2]),
        ("check", said[4]),
        np.array([0, 1, 0]),
        ((1.5, said[5]),),
    )


def _lines(said: list[str]) -> LineChart:
    steps = np.arange(20.0)
    return LineChart(
        "Headroom",
        "step",
        "bits",
        (
            ChartLine(said[6], steps, np.where(steps == 7, np.nan, 20 - steps)),
            ChartLine("model.embed", steps, steps / 2),
        ),
        2.0,
    )


def _steps(said: list[str]) -> StepChart:
    return StepChart(
        "How the set shrank",
        "passes",
        (
            ChartStep("1", 40, Tone.ERROR, said[7]),
            ChartStep("2", 20, Tone.PASS, "right"),
            ChartStep(said[8], 1, Tone.WARNING, ""),
        ),
    )
