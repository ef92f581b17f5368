"""The operator to blame is located by replaying what it was captured to get."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_precheck.commands.locate.plan import LOCATION_TABLES, read_measured
from ray_precheck.commands.locate.replay import own_error
from ray_precheck.commands.locate.report import view
from ray_precheck.commands.locate.run import locate_captures
from ray_precheck.commands.locate.search import LocationReport
from ray_precheck.errors import ResumeError
from ray_precheck.running.views import found_run
from ray_precheck.schema.result import Metrics, OutputCheck, Verdict
from ray_precheck.schema.view import FlowGraph, Tone

RNG = np.random.default_rng(0)
A, B, C = (RNG.standard_normal((8, 8)).astype(np.float32) for _ in range(3))
PRODUCT = A @ B
SMOOTH = np.tanh(PRODUCT)
SHARP = np.exp(SMOOTH)
MATMUL, TANH, EXP = "Torch.matmul.0.forward", "Torch.tanh.0.forward", "Torch.exp.0.forward"
CALLS = [(MATMUL, [A, B], [PRODUCT]), (TANH, [PRODUCT], [SMOOTH]), (EXP, [SMOOTH], [SHARP])]
Call = tuple[str, list[Any], list[Any]]


def _element(values: Any, name: str) -> dict[str, Any]:
    flat = np.asarray(values, np.float64).reshape(-1)
    return {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": list(np.shape(values)),
        "Max": float(flat.max()),
        "Min": float(flat.min()),
        "Mean": float(flat.mean()),
        "Norm": float(np.linalg.norm(flat)),
        "data_name": name,
    }


def _capture(folder: Path, calls: Sequence[Call]) -> Path:
    (folder / "dump_tensor_data").mkdir(parents=True)
    data = {}
    for key, inputs, outputs in calls:
        given = "input" if key.endswith("backward") else "input_args"
        record: dict[str, Any] = {given: [], "output": []}
        for part, name, values in ((given, "input", inputs), ("output", "output", outputs)):
            for number, each in enumerate(values):
                file = f"{key}.{name}.{number}.npy"
                np.save(folder / "dump_tensor_data" / file, np.asarray(each, np.float32))
                record[part].append(_element(each, file))
        data[key] = record
    header = {"task": "tensor", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
    (folder / "dump.json").write_text(json.dumps({**header, "data": data}), encoding="utf-8")
    return folder / "dump.json"


def _with_wrong_tanh() -> list[Call]:
    wrong = SMOOTH.copy()
    wrong[3, 5] = -wrong[3, 5]
    return [CALLS[0], (TANH, [PRODUCT], [wrong]), (EXP, [wrong], [np.exp(wrong)])]


def _rows(report: LocationReport) -> list[dict[str, str]]:
    with report.table.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def test_a_search_of_another_capture_does_not_write_over_the_files_of_one(tmp_path: Path) -> None:
    target = _capture(tmp_path / "target", _with_wrong_tanh())
    report = locate_captures(target, out=tmp_path / "out", devices=(1,))
    before = report.table.read_bytes()
    for rank in (0, 1):
        _capture(tmp_path / f"ranks/step0/rank{rank}", CALLS)
    (begun,) = (tmp_path / "out").glob("locate_calls_*.csv")
    for resumed in (begun, tmp_path / "out"):
        with pytest.raises(ResumeError, match="is of another search than that of"):
            locate_captures(tmp_path / "ranks", resume_csv=resumed, devices=(1,))
    assert report.table.read_bytes() == before
    again = locate_captures(target, resume_csv=begun, devices=(1,))
    assert again.table.read_bytes() == before


def test_one_capture_names_the_operator_the_place_in_its_output_and_what_it_reached(
    tmp_path: Path,
) -> None:
    report = locate_captures(_capture(tmp_path / "t", _with_wrong_tanh()), out=tmp_path / "out")
    first, second = _rows(report)
    assert (first["Place"], first["API Name"], first["Verdict"]) == (
        "1",
        "Torch.tanh.0",
        "own error",
    )
    assert first["Index"] == "output.0[3, 5]"
    assert float(first["Own Error"]) > 1e4
    assert first["Cause"] == "the sign is flipped in 1 elements"
    assert (second["API Name"], second["Verdict"]) == ("Torch.exp.0", "inherited")
    assert float(second["Own Error"]) < 10.0


def test_a_golden_run_tells_what_the_inputs_brought_with_them(tmp_path: Path) -> None:
    target, golden = _capture(tmp_path / "t", _with_wrong_tanh()), _capture(tmp_path / "g", CALLS)
    first, second = _rows(locate_captures(target, golden, out=tmp_path / "out"))
    assert (first["API Name"], first["Inherited Error"]) == ("Torch.tanh.0", "0")
    assert float(second["Inherited Error"]) > 1e3


def test_honest_calls_accuse_nobody(tmp_path: Path) -> None:
    path = _capture(tmp_path / "t", CALLS)
    assert _rows(locate_captures(path, out=tmp_path / "one")) == []
    assert _rows(locate_captures(path, path, out=tmp_path / "two")) == []


def test_what_was_not_captured_is_named_by_its_neighbours(tmp_path: Path) -> None:
    hidden = SMOOTH * 2
    honest = [CALLS[0], CALLS[1], (EXP, [hidden], [np.exp(hidden)])]
    moved = hidden * 1.01
    target = [CALLS[0], CALLS[1], (EXP, [moved], [np.exp(moved)])]
    report = locate_captures(
        _capture(tmp_path / "t", target), _capture(tmp_path / "g", honest), out=tmp_path / "out"
    )
    (row,) = _rows(report)
    assert (row["API Name"], row["Verdict"], row["Index"]) == (
        "Torch.exp.0",
        "not captured",
        "input.0",
    )
    assert f"between {TANH} and {EXP}" in row["Message"]


def test_rows_in_another_order_are_told_from_other_values(tmp_path: Path) -> None:
    other = [(MATMUL, [A[::-1].copy(), B], [A[::-1] @ B])]
    target = _capture(tmp_path / "t", other)
    report = locate_captures(target, _capture(tmp_path / "g", CALLS[:1]), out=tmp_path / "out")
    (row,) = _rows(report)
    assert (row["Verdict"], row["Cause"]) == ("other input", "the same values in another order")


def test_a_wrong_gradient_is_one_of_its_own_direction(tmp_path: Path) -> None:
    gradient = RNG.standard_normal((8, 8)).astype(np.float32)
    right = gradient * (1 - SMOOTH**2)
    backward = "Torch.tanh.0.backward"
    calls = [CALLS[0], CALLS[1], (backward, [gradient], [right * 1.01])]
    (row,) = _rows(locate_captures(_capture(tmp_path / "t", calls), out=tmp_path / "out"))
    assert (row["API Name"], row["Direction"]) == ("Torch.tanh.0", "backward")


def test_a_record_whose_file_is_missing_is_not_checked_and_says_why(tmp_path: Path) -> None:
    path = _capture(tmp_path / "t", CALLS)
    (path.parent / "dump_tensor_data" / f"{TANH}.input.0.npy").unlink()
    (row,) = _rows(locate_captures(path, out=tmp_path / "out"))
    assert (row["API Name"], row["Verdict"]) == ("Torch.tanh.0", "not checked")
    assert f"{TANH}.input.0.npy" in row["Message"]


def test_a_table_that_was_cut_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    target, golden = _capture(tmp_path / "t", _with_wrong_tanh()), _capture(tmp_path / "g", CALLS)
    whole = locate_captures(target, golden, out=tmp_path / "out")
    expected = {path.name: path.read_bytes() for path in whole.folder.glob("*.csv")}
    calls = next(whole.folder.glob("locate_calls_*.csv"))
    calls.write_bytes(b"".join(calls.read_bytes().splitlines(keepends=True)[:2]))
    whole.table.unlink()
    locate_captures(target, golden, resume_csv=calls)
    assert {path.name: path.read_bytes() for path in whole.folder.glob("*.csv")} == expected


def test_the_saved_tensors_of_the_culprit_are_there_for_repro(tmp_path: Path) -> None:
    report = locate_captures(_capture(tmp_path / "t", _with_wrong_tanh()), out=tmp_path / "out")
    assert report.errors is not None
    (folder,) = report.errors.values()
    assert (folder / "Torch.tanh.0.json").exists()


@pytest.mark.parametrize("own", [0.25, float("inf"), None])
def test_what_the_table_of_values_holds_is_read_again(tmp_path: Path, own: float | None) -> None:
    from ray_precheck.commands.locate.plan import (
        MeasuredValue,
        encoded_error,
        encoded_value,
    )
    from ray_precheck.commands.locate.walk.nouns import OwnError, ValueEvidence
    from ray_precheck.store.tables import header

    error = OwnError(
        "error", 7.5, own, 0.5, "pass", "output.0", "[1, 2]", "a sign, \n of it", "=said"
    )
    value = MeasuredValue(ValueEvidence(1e-3, "moved"), "ab", "cd")
    table = tmp_path / "locate_values_1.csv"
    lines = [header(LOCATION_TABLES.details), encoded_value("Torch.a.0", EXP, "input.0", value)]
    table.write_bytes(b"".join([*lines, encoded_error("Torch.a.0", EXP, error)]))
    found = read_measured(table)
    assert found.values == {(EXP, "input.0"): value}
    read = found.errors[EXP]
    assert (read.own, read.inherited, read.golden, read.index) == (7.5, own, 0.5, "[1, 2]")
    assert (read.cause, read.output, read.verdict) == ("a sign, of it", "output.0", "error")


def _checked(message: str, **columns: float) -> OutputCheck:
    metrics = Metrics(cosine=1.0, max_abs_err=1e-6, max_rel_err=1e-6, bench_largest=1.0)
    cells = tuple(columns.items())
    return OutputCheck("a", "", "torch.float32", "", metrics, Verdict.ERROR, message, cells)


def test_an_error_of_an_exact_operator_is_beyond_all_rounding() -> None:
    exact = "must have the same bits as the bench (honest implementations are exact)"
    assert own_error(_checked(exact)) == float("inf")
    assert own_error(_checked("RMSE is too large", RMSE=4.0, HonestRMSE=2.0)) == 2.0
    assert own_error(_checked("no implementations are known")) == pytest.approx(1e-6 * 2**23)


def test_a_dump_that_was_killed_before_its_first_row_keeps_the_stamp_of_all(tmp_path: Path) -> None:
    for rank, calls in enumerate((CALLS, _with_wrong_tanh())):
        _capture(tmp_path / "run" / "step0" / f"rank{rank}", calls)
    out = tmp_path / "out"
    first = locate_captures(tmp_path / "run", out=out)
    content = first.table.read_bytes()
    before = sorted(path.relative_to(out) for path in out.rglob("*.*"))
    stamp = first.table.stem.rpartition("_")[2]
    for kind in ("result", "details"):
        (out / "step0" / "rank1" / LOCATION_TABLES.file(kind, stamp)).unlink()
    first.table.unlink()
    # What a killed process leaves of its stamp is removed, too.
    (out / f"locate_{stamp}.reserved").touch()
    again = locate_captures(tmp_path / "run", out=out, resume_csv=out)
    assert again.table.read_bytes() == content
    assert sorted(path.relative_to(out) for path in out.rglob("*.*")) == before


def test_the_view_of_a_replay_shows_where_the_saved_result_is_wrong(tmp_path: Path) -> None:
    report = locate_captures(_capture(tmp_path / "t", _with_wrong_tanh()), out=tmp_path / "out")
    found = view([found_run(report.table)])
    (card,) = found.cards
    assert (card.name, found.exit_code) == (TANH, 1)
    assert card.case.endswith("Torch.tanh.0.json")
    assert card.reproduce == f"ray-precheck repro {card.case}"
    assert card.histogram is not None
    assert card.blocks is not None
    (metric,) = (bar for bar in card.bars if bar.name == "RMSE")
    assert metric.value > 1000 * metric.limit > 0
    assert card.histogram.unit == "|result - bench| by the root mean square of bench"
    expected = 2 * abs(SMOOTH[3, 5]) / np.sqrt(np.mean(SMOOTH.astype(np.float64) ** 2))
    assert card.blocks.values[3, 5] == pytest.approx(expected, rel=1e-4)
    assert np.nanmax(np.delete(card.blocks.values.reshape(-1), 3 * 8 + 5)) < 1e-6
    (graph,) = (chart for chart in found.model if isinstance(chart, FlowGraph))
    assert graph.names == (MATMUL, TANH, EXP)
    assert graph.edges.tolist() == [[0, 1], [1, 2]]
    tones = [tuple(Tone)[tone] for tone in graph.tones]
    assert tones == [Tone.PASS, Tone.ERROR, Tone.WARNING]
    # Records without a row were replayed, too: their own errors are known.
    assert 0 < graph.own[0] < 10
    assert graph.own[1] == pytest.approx(card.times, rel=1e-3)
    facts = {each.name: each.value for each in found.facts}
    assert facts["Own errors"] == "by replay of captured inputs"
    records = facts["Records (forward or backward passes of calls)"]
    assert records.startswith("3: 1 to blame, 1 only pass an error on")


def test_a_saved_call_that_is_torn_leaves_the_captures(tmp_path: Path) -> None:
    target = _capture(tmp_path / "t", _with_wrong_tanh())
    report = locate_captures(target, _capture(tmp_path / "g", CALLS), out=tmp_path / "out")
    (saved,) = (tmp_path / "out/error_data").glob("*/Torch.tanh.0.json")
    saved.write_text("{")
    (card,) = view([found_run(report.table)]).cards
    assert card.blocks is not None
    assert card.histogram is not None
    assert card.histogram.unit == "|target - golden run| by the root mean square of golden run"
    assert np.count_nonzero(card.blocks.values) == 1
    assert card.blocks.values[3, 5] > 1


@pytest.mark.parametrize("is_distributed", [True, False])
def test_sizes_of_a_whole_distributed_tensor_are_no_error_of_a_rank_with_a_part(
    tmp_path: Path, is_distributed: bool
) -> None:
    # As in pytorch/examples, distributed/tensor_parallelism/llama2_model.py: 4 heads, of which a rank has 2.
    key = "Tensor.reshape.0.forward"
    path = _capture(tmp_path / "one", [(key, [A.reshape(4, 2, 8)], [A.reshape(4, 2, 4, 2)])])
    dump = json.loads(path.read_text())
    record = dump["data"][key]
    record["input_args"] += [{"type": "int", "value": each} for each in (4, 4, -1, 2)]
    if is_distributed:
        for part, shape in (("input_args", [4, 4, 8]), ("output", [4, 4, 4, 2])):
            record[part][0] |= {"placements": [{"Shard": {"dim": 1}}], "global_shape": shape}
    path.write_text(json.dumps(dump))
    report = locate_captures(path, out=tmp_path / "out")
    assert len(report.places) == (0 if is_distributed else 1)
