"""What is measured of a row, from files, sketches or statistics."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from captured_pairs import (
    KEY,
    from_files,
    from_statistics,
    items,
    judged,
    record,
    statistics,
    tensor,
)

from ray_precheck.dump.mapped import MappedTensors
from ray_precheck.dump.tensors import SketchFile, read_sketches
from ray_precheck.numerics.sketch import sketch
from ray_precheck.trace.difference.measuring import (
    Reading,
    Source,
    common_kinds,
    kinds_of,
    mode_of,
    reading_of,
    rows_of_operators,
)
from ray_precheck.trace.difference.rows import ComparisonMode
from ray_precheck.trace.difference.standards.registry import BLIND
from ray_precheck.trace.side import open_side

pytestmark = pytest.mark.unit

RAMP = np.arange(12, dtype=np.float32).reshape(3, 4) / 8


def test_files_of_both_sides_are_compared(tmp_path: Path) -> None:
    _, output = from_files(tmp_path, ([RAMP], [RAMP * 2]), ([RAMP], [RAMP]))
    assert output.relative_l2 == 1.0
    assert output.elements is not None
    assert output.elements.size == 12
    assert not output.estimated


def test_a_missing_file_falls_back_to_statistics_and_says_whose_it_is(tmp_path: Path) -> None:
    rows = from_files(tmp_path, ([RAMP], [RAMP]), ([RAMP], [RAMP]))
    (tmp_path / "golden" / f"{KEY}.output.0.npy").unlink()
    rows = rows_of_operators(
        KEY, KEY, [row.item for row in rows], [row.item for row in rows], _reading(tmp_path)
    )
    assert rows[1].elements is None
    assert rows[1].unread == f"golden: no file '{KEY}.output.0.npy' in {tmp_path / 'golden'}"
    assert judged(rows, "msprobe", ComparisonMode.REAL) == ["pass", "warning"]
    assert rows[1].messages[0].endswith("statistics are compared instead")


def test_a_torn_file_falls_back_to_statistics(tmp_path: Path) -> None:
    rows = from_files(tmp_path, ([RAMP], [RAMP]), ([RAMP], [RAMP]))
    torn = tmp_path / "target" / f"{KEY}.output.0.npy"
    torn.write_bytes(torn.read_bytes()[:-5])
    rows = rows_of_operators(
        KEY, KEY, [row.item for row in rows], [row.item for row in rows], _reading(tmp_path)
    )
    assert rows[1].unread.startswith(f"target: {KEY}.output.0.npy is not a readable .npy file")
    assert rows[1].statistics[:4] == ("0", "0", "0", "0")


def _reading(folder: Path) -> Reading:
    sources = [Source(MappedTensors(folder / name)) for name in ("target", "golden")]
    return Reading(ComparisonMode.REAL, *sources)


@pytest.mark.parametrize(
    ("target", "golden", "layout"),
    [
        (RAMP.T.copy(), RAMP, "the same values, transposed: golden.permute(1, 0)"),
        (RAMP.reshape(4, 3), RAMP, "the same values, reshaped"),
        (RAMP[::-1].copy(), RAMP, "the same values in another order"),
        (RAMP[::-1].reshape(2, 6), RAMP, "the same values in another order"),
        (RAMP.reshape(4, 3) + 1, RAMP, ""),
        (RAMP + 1, RAMP, ""),
    ],
)
def test_the_same_values_in_another_layout_are_named(
    tmp_path: Path, target: Any, golden: Any, layout: str
) -> None:
    _, output = from_files(tmp_path, ([RAMP], [target]), ([RAMP], [golden]))
    assert output.layout == layout
    judged([output], "npu-hooks", ComparisonMode.REAL)
    assert any(layout in each for each in output.messages) or not layout


def test_other_shapes_with_the_same_statistics_are_named_without_files() -> None:
    rows = from_statistics(record([], [statistics(shape=(2, 8))]), record([], [statistics()]))
    assert "another layout" in rows[0].layout


def test_statistics_that_agree_say_what_they_do_not_show() -> None:
    rows = from_statistics(
        record([statistics()], [statistics()]), record([statistics()], [statistics()])
    )
    assert judged(rows, "msprobe", ComparisonMode.STATISTICS) == ["pass", "pass"]
    assert [row.messages for row in rows] == [[BLIND], [BLIND]]


def _sketched(folder: Path, array: Any) -> tuple[dict[str, Any], Any]:
    file = SketchFile(folder)
    fields = json.loads("{" + file.append(sketch(array)) + "}")
    file.finish()
    return tensor(array, **fields), read_sketches(folder)


def test_sketches_estimate_the_distance_and_the_row_says_so(tmp_path: Path) -> None:
    golden = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    noise = np.random.default_rng(1).standard_normal(golden.size).astype(np.float32)
    ours, rows = _sketched(tmp_path / "a", golden + np.float32(1e-3) * noise)
    theirs, golden_rows = _sketched(tmp_path / "b", golden)
    reading = Reading(ComparisonMode.STATISTICS, Source(None, rows), Source(None, golden_rows))
    found = rows_of_operators(KEY, KEY, items([], [ours]), items([], [theirs]), reading)
    assert found[0].estimated
    assert found[0].relative_l2 == pytest.approx(1e-3, rel=0.3)
    judged(found, "npu-hooks", ComparisonMode.STATISTICS)
    assert found[0].messages == ["Relative L2 is estimated from sketches"]


def test_sketches_show_another_order_that_statistics_do_not(tmp_path: Path) -> None:
    golden = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    ours, rows = _sketched(tmp_path / "a", golden[::-1].copy())
    theirs, golden_rows = _sketched(tmp_path / "b", golden)
    reading = Reading(ComparisonMode.STATISTICS, Source(None, rows), Source(None, golden_rows))
    found = rows_of_operators(KEY, KEY, items([], [ours]), items([], [theirs]), reading)
    assert found[0].relative_l2 == pytest.approx(math.sqrt(2), rel=0.3)
    assert judged(found, "msprobe", ComparisonMode.STATISTICS) == ["warning"]
    assert judged(found, "auto", ComparisonMode.STATISTICS) == ["error"]


def test_the_mode_is_the_best_that_both_sides_have() -> None:
    real, statistics_alone, digests = (
        {ComparisonMode.REAL, ComparisonMode.STATISTICS},
        {ComparisonMode.STATISTICS},
        {ComparisonMode.DIGESTS},
    )
    assert mode_of(real) is ComparisonMode.REAL
    assert mode_of(real & statistics_alone) is ComparisonMode.STATISTICS
    assert mode_of(digests) is ComparisonMode.DIGESTS
    assert mode_of(real & digests) is mode_of(set()) is ComparisonMode.STATISTICS


def test_digests_of_another_kind_are_not_in_common(tmp_path: Path) -> None:
    sides = []
    for digest in ("a6595bdc", "0x0000000000000036", "5d8086ad"):
        path = tmp_path / digest / "dump.json"
        path.parent.mkdir()
        element = {"type": "torch.Tensor", "dtype": "torch.int64", "shape": [2], "md5": digest}
        path.write_text(json.dumps({"data": {KEY: record([element], [])}}), encoding="utf-8")
        sides.append(open_side(path))
    with sides[0], sides[1], sides[2]:
        assert common_kinds(sides[0], sides[1]) == set()
        assert common_kinds(sides[0], sides[2]) == {ComparisonMode.DIGESTS}


def test_statistics_of_another_number_of_elements_are_no_layout() -> None:
    sides = [record([], [statistics(shape=shape)]) for shape in ((4, 4), (2, 8), (4, 5))]
    (same,) = from_statistics(sides[1], sides[0])
    (other,) = from_statistics(sides[2], sides[0])
    assert "another layout" in same.layout
    assert other.reshaped
    assert not other.layout


def test_a_reading_knows_the_frameworks_and_the_folders(tmp_path: Path) -> None:
    sides = []
    for framework in ("pytorch", "mindspore"):
        path = tmp_path / framework / "dump.json"
        path.parent.mkdir()
        data = {KEY: record([tensor(RAMP, "x")], [])}
        path.write_text(json.dumps({"framework": framework, "data": data}), encoding="utf-8")
        sides.append(open_side(path))
    with sides[0], sides[1]:
        found = reading_of(*sides)
        assert kinds_of(sides[0]) == {ComparisonMode.REAL, ComparisonMode.STATISTICS}
    assert (found.mode, found.same_framework) == (ComparisonMode.REAL, False)


def test_values_of_other_dtypes_say_that_they_were_widened(tmp_path: Path) -> None:
    rows = from_files(tmp_path, ([], [RAMP.astype(np.float16)]), ([], [RAMP]))
    judged(rows, "npu-hooks", ComparisonMode.REAL)
    assert rows[0].messages == ["compared after widening torch.float16 and torch.float32"]
    assert rows[0].relative_l2 == 0.0
