"""The View of compare_results: the outputs beyond their limits, each ratio beside its limit."""

import math
from pathlib import Path

import numpy as np
import pytest

from ray_precheck.commands.compare_results.report import view
from ray_precheck.commands.compare_results.run import COLUMNS
from ray_precheck.running.views import found_run
from ray_precheck.schema.view import HeatMap, Tone
from ray_precheck.store.tables import encode_row, header

pytestmark = pytest.mark.unit
ROWS = [
    ["Torch.exp.0.forward.output.0", "float32", "(2,)", "L0", "1", "1", "1", "", "", "pass", ""],
    ["Torch.exp.1.forward.output.0", "float32", "(2,)", "L0", "20", "1", "2", "", "", "error", "too far"],
    ["Torch.sum.0.forward.output.0", "float16", "(1,)", "", "", "", "", "", "", "error", "NaN elsewhere"],
    ["Torch.add.0.forward.output.0", "float32", "(1,)", "", "", "", "", "", "", "SKIP", "not in b.csv"],
]  # fmt: skip


def table(folder: Path, rows: list[list[str]]) -> Path:
    path = folder / "compare_results_20260101120000.csv"
    path.write_bytes(header(COLUMNS) + b"".join(map(encode_row, rows)))
    return path


def test_outputs_beyond_their_limits_have_cards_the_worst_first(tmp_path: Path) -> None:
    found = view([found_run(table(tmp_path, ROWS))])
    assert found.sentence == (
        "2 of 3 outputs err more than the reference allows; the worst is Torch.sum.0.forward.output.0."
    )
    nan, far = found.cards
    assert (nan.why, nan.times) == ("NaN elsewhere.", math.inf)
    # Limits of level L0: 10, 2 and 2.
    assert [(bar.name, bar.value, bar.limit) for bar in far.bars] == [
        ("MaxRelErrRatio", 20.0, 10.0),
        ("MeanRelErrRatio", 1.0, 2.0),
        ("RMSERatio", 2.0, 2.0),
    ]
    assert far.times == 2.0
    assert [(each.text, each.count) for each in found.reasons] == [("not in b.csv", 1)]
    assert [count.number for count in found.counts] == [1, 2, 1]
    assert (found.exit_code, found.tone) == (1, Tone.ERROR)
    (heat,) = found.overview
    assert isinstance(heat, HeatMap)
    np.testing.assert_array_equal(heat.values, [[math.inf, np.nan], [np.nan, 2.0]])
    assert heat.links[1, 1] == "Torch.exp.1.forward.output.0"


def test_nothing_compared_is_said(tmp_path: Path) -> None:
    found = view([found_run(table(tmp_path, ROWS[3:]))])
    assert (found.sentence, found.exit_code) == ("No output could be compared.", 4)
