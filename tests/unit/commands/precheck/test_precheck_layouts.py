"""Runs with other numbers of ranks are compared by the whole tensors of which each rank has a part."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_precheck.capture.recording.measures import sketch_part
from ray_precheck.commands.compare.run import compare_captures
from ray_precheck.dump.tensors import SketchFile
from ray_precheck.errors import UsageError
from ray_precheck.numerics.sketch import sketch

pytestmark = pytest.mark.unit
WHOLE = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
KEY = "Functional.linear.0.forward"


def statistics(values: Any) -> dict[str, Any]:
    flat = np.asarray(values, np.float64).reshape(-1)
    return {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": list(np.shape(values)),
        "Max": float(flat.max()),
        "Min": float(flat.min()),
        "Mean": float(flat.mean()),
        "Norm": float(np.linalg.norm(flat)),
    }


def write(folder: Path, elements: list[dict[str, Any]], sketches: list[Any]) -> None:
    file = SketchFile(folder)
    for element, buckets in zip(elements, sketches, strict=True):
        if buckets is not None:
            element |= json.loads(f"{{{file.append(buckets)}}}")
    file.finish()
    data = {KEY: {"input_args": [], "input_kwargs": {}, "output": elements}}
    header = {"task": "statistics", "level": "L1", "framework": "pytorch"}
    (folder / "dump.json").write_text(json.dumps({**header, "data": data}), encoding="utf-8")


def write_whole(folder: Path, whole: Any, own: Any) -> None:
    place = folder / "step0" / "proc7"
    write(place, [statistics(whole), statistics(own)], [sketch(whole), None])


def write_ranks(folder: Path, whole: Any, own: list[Any], **more: Any) -> None:
    """Two ranks, each with half of the rows, and with a tensor of its own."""
    for rank, rows in enumerate((slice(0, 3), slice(3, 6))):
        part = whole[rows]
        about = {
            "device_mesh": [0, 1],
            "placements": [{"Shard": {"dim": 0}}],
            "global_shape": [6, 8],
            **more,
        }
        buckets = sketch_part(part, (6, 8), (3 * rank, 0))
        elements = [{**statistics(part), **about}, statistics(own[rank])]
        write(folder / "step0" / f"rank{rank}", elements, [buckets, None])


def compared(folder: Path, **options: Any) -> list[dict[str, str]]:
    found = compare_captures(folder / "t", folder / "g", out=folder / "out", **options)
    (report,) = found.reports
    with report.files.details.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def test_parts_add_up_to_the_whole(tmp_path: Path) -> None:
    write_ranks(tmp_path / "t", WHOLE, [WHOLE[0], WHOLE[0]])
    write_whole(tmp_path / "g", WHOLE, WHOLE[0])
    first, second = compared(tmp_path, standard="auto")
    assert (first["NPU Tensor Shape"], first["Result"]) == ("[6, 8]", "pass")
    assert float(first["Relative L2"]) < 1e-6
    assert float(first["Mean diff"]) == pytest.approx(0, abs=1e-9)
    assert (second["Result"], second["L2norm diff"]) == ("pass", "0")


@pytest.mark.parametrize("swapped", [False, True])
def test_a_part_that_is_wrong_is_found_in_the_whole(tmp_path: Path, swapped: bool) -> None:
    wrong = WHOLE.copy()
    wrong[4] *= 1.01
    ranks, whole = ("g", "t") if swapped else ("t", "g")
    write_ranks(tmp_path / ranks, wrong, [WHOLE[0], WHOLE[0]])
    write_whole(tmp_path / whole, WHOLE, WHOLE[0])
    first, _ = compared(tmp_path, standard="auto")
    assert first["Result"] == "error"
    true = np.linalg.norm(wrong - WHOLE) / np.linalg.norm(WHOLE)
    assert float(first["Relative L2"]) == pytest.approx(true, rel=0.3)


def test_a_part_at_the_wrong_place_is_found_though_all_statistics_agree(tmp_path: Path) -> None:
    write_ranks(tmp_path / "t", np.concatenate([WHOLE[3:], WHOLE[:3]]), [WHOLE[0], WHOLE[0]])
    write_whole(tmp_path / "g", WHOLE, WHOLE[0])
    first, _ = compared(tmp_path)
    assert float(first["Relative L2"]) > 0.5
    assert first["Result"] == "warning"
    assert "the sketches differ" in first["Err_message"]


def test_a_tensor_that_each_rank_has_for_itself_is_not_compared(tmp_path: Path) -> None:
    write_ranks(tmp_path / "t", WHOLE, [WHOLE[0], WHOLE[1]])
    write_whole(tmp_path / "g", WHOLE, WHOLE[0])
    _, second = compared(tmp_path, standard="auto")
    assert second["Max diff"] not in ("0", "0.0")
    assert second["Relative L2"] == "N/A"


def test_of_a_sum_that_is_not_made_yet_nothing_is_known(tmp_path: Path) -> None:
    partial = [{"Partial": {"reduce_op": "sum"}}]
    write_ranks(tmp_path / "t", WHOLE, [WHOLE[0], WHOLE[0]], placements=partial)
    write_whole(tmp_path / "g", WHOLE, WHOLE[0])
    first, _ = compared(tmp_path, standard="auto")
    assert (first["NPU Tensor Shape"], first["Result"]) == ("[6, 8]", "warning")
    assert "nothing was compared: the target has no values" in first["Err_message"]


def test_a_run_of_which_ranks_are_missing_is_refused(tmp_path: Path) -> None:
    write_ranks(tmp_path / "t", WHOLE, [WHOLE[0], WHOLE[0]], device_mesh=[[0, 1], [2, 3]])
    write_whole(tmp_path / "g", WHOLE, WHOLE[0])
    with pytest.raises(UsageError, match="ranks are missing that their groups name"):
        compared(tmp_path)


def test_the_same_ranks_are_gathered_to_the_same_bytes(tmp_path: Path) -> None:
    write_ranks(tmp_path / "t", WHOLE, [WHOLE[0], WHOLE[0]])
    write_whole(tmp_path / "g", WHOLE, WHOLE[0])
    compared(tmp_path)
    (place,) = (tmp_path / "out").glob("gathered_*")
    before = {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()}
    (csv_path,) = (tmp_path / "out").glob("compare_result_*.csv")
    found = compare_captures(tmp_path / "t", tmp_path / "g", resume_csv=csv_path)
    assert found.completed
    assert before == {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()}
