"""Views of all kinds for the tests of the page."""

from pathlib import Path

import numpy as np

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

COLUMNS = (
    RowColumn("API Name", CellKind.NAME),
    RowColumn("Dtype", CellKind.TEXT),
    RowColumn("Error", CellKind.NUMBER),
    RowColumn("Status", CellKind.TONE),
)
TONES = {"pass": Tone.PASS, "error": Tone.ERROR, "SKIP": Tone.SKIP}


def sample_card(name: str, text: str = "") -> Card:
    """A card that has everything."""
    return Card(
        name,
        Tone.ERROR,
        f"MaxAbsErr 0.3 is above its limit 0.0001{text}",
        row=name,
        label="step0/rank1",
        times=3000.0,
        facts=(Fact("standard", f"msprobe{text}"),),
        inputs=(Fact("input.0", "torch.float32 (4, 8), from -1 to 1"),),
        bars=(
            Bar("Cosine", 0.5, 0.99, is_least=True),
            Bar("MaxAbsErr", 0.3, 1e-4),
            Bar("Norm", float("inf"), float("nan")),
        ),
        histogram=Histogram("errors", "|error|", (1e-6, 1e-4, 1e-2, 1.0), (3, 0, 12), 1e-4),
        blocks=BlockMaxima(
            "where", "times the limit", (4, 8), np.array([[0.0, np.nan], [3000.0, 0.5]]), 1.0
        ),
        cause=f"a wrong sign{text}",
        module=f"layers.0{text}",
        source=f"model.py:3, in forward: y = x{text}",
        code=(CodeLine(2, "def forward(x):"), CodeLine(3, f"    y = x{text}", True)),
        reproduce=f"ray-precheck repro {name}.json",
        case=f"{name}.json",
        missing=("the dump is not on this machine",),
    )


def sample_view(rows: int = 100, text: str = "", path: Path | None = None) -> View:
    """A view with a chart of each kind; `text` is put behind every text."""
    names = [f"Torch.add.{i}.forward.output.0{text}" for i in range(rows)]
    random = np.random.default_rng(1)
    ratios = 10 ** random.uniform(-3, 3, (4, 3))
    ratios[1, 1] = np.nan
    cells = tuple(
        (name, "torch.float32", repr(float(i) / 7), "error" if i % 10 == 3 else "pass")
        for i, name in enumerate(names)
    )
    count = min(rows, 40)
    edges = np.array([(i, i + 1) for i in range(count - 1)] + [(0, 5), (2, 9)])
    begin = np.arange(count) * 0.5
    return View(
        "run_ut",
        f"sample{text}",
        f"10 of 100 APIs are in error{text}",
        Tone.ERROR,
        ViewState.FINISHED,
        1,
        (Fact("Device", f"1 cpu{text}"), Fact("Seed", "0")),
        f"ray-precheck run_ut -api_info dump.json{text}",
        (Count("pass", 90, Tone.PASS), Count("error", 10, Tone.ERROR)),
        (NotCompared(f"not supported{text}", 3, (names[0],)),),
        (f"the capture was cut short{text}",),
        tuple(sample_card(names[i], text) for i in range(3)),
        7,
        (
            HeatMap(
                f"operators by dtypes{text}",
                "times the limit",
                ("add", "mul", f"div{text}", "exp"),
                ("float32", "float16", "bfloat16"),
                ratios,
                {(0, 0): names[3], (2, 1): names[13]},
                row_title="operator",
                column_title="dtype",
            ),
            Histogram("all errors", "|error|", (1e-6, 1e-4, 1e-2, 1.0), (300, 20, 1), 1e-4),
        ),
        (
            ModuleTree(
                "modules",
                (
                    ModuleNode(f"model{text}", -1, Tone.ERROR, 40, 2, names[3]),
                    ModuleNode("model.layers.0", 0, Tone.ERROR, 20, 2, names[3]),
                    ModuleNode("model.layers.1", 0, Tone.PASS, 20, 0),
                ),
            ),
            FlowGraph(
                "flow",
                "times what rounding explains",
                tuple(names[:count]),
                np.array([2 if i == 3 else 0 for i in range(count)], np.uint8),
                10 ** random.uniform(-2, 2, count),
                np.where(np.arange(count) > 3, 50.0, np.nan),
                edges,
                np.array([[1, 2]]),
                (3, 13) if count > 13 else (0,),
                tuple(f"own error of {name}" for name in names[:count]),
            ),
        ),
        (
            TimelineChart(
                "what ran where",
                ("cpu:0", f"cpu:1{text}"),
                np.arange(count) % 2,
                begin,
                np.full(count, 0.4),
                tuple(names[:count]),
                np.arange(count),
                ("check", "bench"),
                np.zeros(count, np.int64),
                ((3.0, f"a worker crashed{text}"),),
            ),
            LineChart(
                "headroom",
                "step",
                "bits",
                (ChartLine(f"x{text}", np.arange(5.0), np.array([9, 8, np.nan, 6, 5.0])),),
                4.0,
            ),
            StepChart(
                "how the set shrank",
                "switches",
                (
                    ChartStep("trial 1", 64, Tone.ERROR, f"all on{text}"),
                    ChartStep("trial 2", 32, Tone.PASS, "half"),
                    ChartStep("trial 3", 16, Tone.SKIP, "no answer"),
                ),
            ),
        ),
        (RowTable("details", COLUMNS, path, () if path else cells, 0, TONES),),
        (Advice(f"See it alone{text}:", (f"ray-precheck repro x.json{text}",)),),
        (f"/tmp/a.csv{text}",),
    )
