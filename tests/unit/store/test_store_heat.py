"""Where outputs are wrong: block maxima and histograms, and the file that keeps them through kills."""

import itertools
import os
import shutil
import signal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_precheck.accuracy import heat as measuring
from ray_precheck.accuracy.heat import ElementLimit, ErrorKind, bin_edges, element_limit, heat_of
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import Done
from ray_precheck.store import heat as keeping
from ray_precheck.store.heat import (
    HeatLog,
    finish_heats,
    heat_file,
    heat_line,
    keep_heats,
    read_heat,
)
from ray_precheck.store.journal import Journal
from ray_precheck.store.resume import resume_run, start_run
from ray_precheck.store.settings import RunSettings, load_settings
from ray_precheck.store.tables import run_files

pytestmark = pytest.mark.unit

LIMIT = ElementLimit(ErrorKind.ABSOLUTE, 0.5)
PLAIN = ElementLimit(ErrorKind.RELATIVE)


def test_the_largest_error_of_each_block_is_in_its_place():
    bench = np.zeros((4, 8, 64), np.float64)
    device = bench.astype(np.float32)
    device[1, 2, 33] = 2.0  # row 10 of 32, so row 5 of 16; column 33 of 64, so column 8 of 16
    device[1, 3, 34] = -1.0  # the same block
    found = heat_of("x", device, bench, "float32", LIMIT)
    expected = np.zeros((16, 16), np.float32)
    expected[5, 8] = 4.0
    np.testing.assert_array_equal(found.blocks, expected)
    assert (found.above, found.zeros, found.nonfinite) == (1.0, 4 * 8 * 64 - 2, 0)
    low = bin_edges()
    assert {low[place] for place in np.flatnonzero(found.counts)} == {1.0, 10**0.5}


def test_numbers_that_are_infinite_on_one_side_alone_are_counted_apart():
    bench = np.array([np.nan, np.inf, 1.0, -np.inf, 2.0])
    device = np.array([np.nan, np.inf, np.nan, np.inf, 2.0], np.float32)
    found = heat_of("x", device, bench, "float32", PLAIN)
    assert (found.zeros, found.nonfinite, int(found.counts.sum())) == (3, 2, 0)
    np.testing.assert_array_equal(found.blocks, [[0.0, 0.0, np.inf, np.inf, 0.0]])


@pytest.mark.parametrize(
    ("device", "bench", "dtype", "expected"),
    [
        (np.array(3, np.int64), np.array(1, np.int64), "int64", 2.0),
        (np.array(True), np.array(False), "bool", 1.0),
        (np.array(2**63 - 1), np.array(2**63 - 2), "int64", 2.0**-63),
        (np.array(1j, np.complex64), np.array(2j), "complex64", 0.5),
        (np.array(0.0, np.float32), np.array(1e-45), "float32", 2.0**-23),
    ],
)
def test_a_single_element_has_its_relative_error(device, bench, dtype, expected):
    found = heat_of("x", device, bench, dtype, PLAIN)
    assert found.shape == ()
    assert float(found.blocks[0, 0]) == pytest.approx(expected)


@pytest.mark.parametrize("most", [1, 4, 60])
@pytest.mark.parametrize("shape", [(7, 5), (1, 40), (3, 2, 17), (33,), (16, 16), (100, 1)])
def test_a_large_output_is_measured_piece_by_piece_to_the_same_numbers(monkeypatch, shape, most):
    rng = np.random.default_rng(1)
    bench = rng.standard_normal(shape)
    device = (bench + rng.standard_normal(shape) * 1e-3).astype(np.float32)
    whole = heat_of("x", device, bench, "float32", LIMIT)
    monkeypatch.setattr(measuring, "_ELEMENTS_AT_ONCE", most)
    parts = heat_of("x", device, bench, "float32", LIMIT)
    np.testing.assert_array_equal(parts.blocks, whole.blocks)
    np.testing.assert_array_equal(parts.counts, whole.counts)
    assert whole.counts.sum() + whole.zeros == bench.size
    largest = np.abs(device - bench.astype(np.float32).astype(np.float64)).max() / 0.5
    assert float(whole.blocks.max()) == pytest.approx(largest)


@given(
    shape=st.lists(st.integers(1, 40), min_size=0, max_size=4).map(tuple),
    dtype=st.sampled_from(["float32", "float64"]),
)
@settings(max_examples=40, deadline=None)
def test_every_element_is_counted_and_no_block_is_empty(shape, dtype):
    bench = np.random.default_rng(3).standard_normal(shape)
    found = heat_of("x", (bench * 1.01).astype(dtype), bench, dtype, PLAIN)
    assert found.counts.sum() + found.zeros + found.nonfinite == bench.size
    assert max(found.blocks.shape) <= 16
    assert np.isfinite(found.blocks).all()


ULPS = "share of elements more than 32 units in the last place off is 0.5, must be below 0.05"
NEAR = "share of elements with a relative error below 0.001 is 0.5, must be at least 0.999"
ABOVE = "share of elements whose relative error is above 0.0009766 is 1, must be at most 0"
TWO = "RMSE is 1.2, must be at most 1e-06; also largest error is 3, must be at most 2.5e-06; likely"
BY_ELEMENT = (
    "cosine 0.5 is not above 0.99; MaxAbsErr 2.5 at index [0, 3] is not below 0.002; likely"
)


@pytest.mark.parametrize(
    ("message", "standard", "kind", "limit"),
    [
        (BY_ELEMENT, "msprobe", ErrorKind.ABSOLUTE, 2e-3),
        ("cosine 0.5 is not above 0.99", "msprobe", ErrorKind.ABSOLUTE, 1e-4),
        (TWO, "auto", ErrorKind.ABSOLUTE, 2.5e-6),
        (ULPS, "ulp", ErrorKind.UNITS, 32),
        (NEAR, "thousandth", ErrorKind.RELATIVE, 1e-3),
        (ABOVE, "absolute", ErrorKind.RELATIVE, 0.0009766),
        ("must have the same bits, but the largest error is 3", "auto", ErrorKind.RELATIVE, None),
        ("RMSE is 1.2, must be at most 1e-06", "auto", ErrorKind.RELATIVE, None),
        ("largest error is nan, must be at most nan", "auto", ErrorKind.RELATIVE, None),
    ],
)
def test_the_limit_of_elements_is_that_of_the_message(message, standard, kind, limit):
    found = element_limit(message, standard)
    assert found.kind is kind
    assert np.isnan(found.limit) if limit is None else found.limit == limit


def heats(call: str, outputs: int = 1, scale: float = 1.0) -> tuple[bytes, ...]:
    bench = np.linspace(1, 2, 60).reshape(5, 12)
    return tuple(
        heat_line(
            heat_of(f"{call}.forward.output.{each}", bench * (1 + scale), bench, "float64", PLAIN)
        )
        for each in range(outputs)
    )


def done(index: int, call: str, outputs: int = 1, scale: float = 1.0) -> Done:
    row = f"{call},error,,far off\r\n".encode()
    details = b"".join(
        f"{call}.forward.output.{each},a,b,(5),,1,1,error,far off\r\n".encode()
        for each in range(outputs)
    )
    return Done(index, call, Verdict.ERROR, row, details, heats=heats(call, outputs, scale))


@pytest.fixture
def files(tmp_path):
    return start_run(tmp_path / "run", "20260101120000", RunSettings({"dump": "d"}))


CALLS = [f"Mint.add.{number}" for number in range(6)]


def written(files, dones, order=None) -> bytes:
    journal = Journal.open(files.result, files.details)
    for each in dones:
        journal.append([each])
    if order is not None:
        journal.complete(order)
    journal.close()
    path = heat_file(files.result)
    return path.read_bytes() if path.exists() else b""


def test_the_arrays_have_the_same_bytes_whichever_call_ends_first(files, tmp_path):
    dones = [done(index, name, 2) for index, name in enumerate(CALLS)]
    other = start_run(tmp_path / "other", "20260101120000", RunSettings({"dump": "d"}))
    expected = written(files, dones, CALLS)
    assert expected
    assert written(other, reversed(dones), CALLS) == expected
    assert list(read_heat(heat_file(files.result))) == [
        f"{call}.forward.output.{number}" for call in CALLS for number in range(2)
    ]
    assert sorted(path.suffix for path in files.result.parent.iterdir()) == [
        ".csv", ".csv", ".json", ".npz",
    ]  # fmt: skip


def test_what_is_read_is_what_was_measured(files):
    bench = np.zeros((3, 50))
    device = bench.copy()
    device[2, 49], device[0, 0] = np.nan, 1.0
    odd = "Mint.\n\ud800,x.0.forward.output.0"
    before = heat_of(odd, device, bench, "float64", LIMIT)
    line = heat_line(before)
    written(files, [Done(0, "Mint.\n\ud800,x.0", Verdict.ERROR, b"x\r\n", heats=(line,))], [])
    [found] = read_heat(heat_file(files.result)).values()
    assert (found.name, found.shape, found.unit, found.above) == (odd, (3, 50), before.unit, 1.0)
    np.testing.assert_array_equal(found.blocks, before.blocks)
    np.testing.assert_array_equal(found.counts, before.counts)
    assert (found.zeros, found.nonfinite) == (148, 1)


def test_an_output_takes_at_most_2_kb(files):
    rng = np.random.default_rng(7)
    bench = rng.standard_normal((160, 160))
    noise = 10.0 ** rng.uniform(-14, 14, bench.shape)
    longest = "Mint." + "x" * 370 + ".0"
    line = heat_line(heat_of(f"{longest}.forward.output.0", noise, bench, "float64", PLAIN))
    data = written(files, [Done(0, longest, Verdict.ERROR, b"x\r\n", heats=(line,))], [])
    several = [done(index, name, 20) for index, name in enumerate(CALLS)]
    shutil.rmtree(files.result.parent)
    files = start_run(files.result.parent, "20260101120000", RunSettings({"dump": "d"}))
    assert len(written(files, several, CALLS)) / 120 < 2048
    # A single one has the headers of all arrays, too.
    assert len(data) < 2048 + 3000
    assert heat_line(heat_of("x" * 401, bench, bench + 1, "float64", PLAIN)) == b""


def test_the_first_outputs_of_the_dump_are_kept_whichever_end_first(files, monkeypatch, tmp_path):
    monkeypatch.setattr(keeping, "MOST_OUTPUTS", 4)
    dones = [done(index, name, 3) for index, name in enumerate(CALLS)]
    expected = written(files, dones, CALLS)
    other = start_run(tmp_path / "other", "20260101120000", RunSettings({"dump": "d"}))
    assert written(other, [dones[each] for each in (5, 3, 1, 4, 0, 2)], CALLS) == expected
    assert list(read_heat(heat_file(files.result))) == [
        *(f"Mint.add.0.forward.output.{number}" for number in range(3)),
        "Mint.add.1.forward.output.0",
    ]


def test_the_log_stays_small_however_many_outputs_are_wrong(files, monkeypatch):
    monkeypatch.setattr(keeping, "MOST_OUTPUTS", 10)
    journal = Journal.open(files.result, files.details)
    for index in reversed(range(300)):
        journal.append([done(index, f"Mint.add.{index}")])
    log = heat_file(files.result).with_suffix(".log")
    assert log.read_bytes().count(b"\n") <= 20
    assert len(read_heat(heat_file(files.result))) <= 20


def test_a_run_that_goes_on_can_be_read_and_a_torn_line_is_left_out(files):
    written(files, [done(0, CALLS[0]), done(1, CALLS[1])])
    log = heat_file(files.result).with_suffix(".log")
    whole = log.read_bytes()
    for cut in range(len(whole)):
        log.write_bytes(whole[:cut])
        names = list(read_heat(heat_file(files.result)))
        assert len(names) == whole[:cut].count(b"\n")
    log.write_bytes(whole + b"7 {garbage}\n")
    assert len(read_heat(heat_file(files.result))) == 2


def test_a_torn_log_is_cut_before_more_is_appended(files):
    written(files, [done(0, CALLS[0])])
    log = heat_file(files.result).with_suffix(".log")
    with log.open("ab") as file:
        file.write(b"1 {torn")
    written(files, [done(1, CALLS[1])], CALLS)
    assert len(read_heat(heat_file(files.result))) == 2


def resumed(files, *, retry=()) -> set[str]:
    return resume_run(files, set(CALLS), {"dump": "d"}, retry=retry)


def test_a_resume_drops_calls_that_are_done_again_and_keeps_the_others(files):
    dones = [done(index, name) for index, name in enumerate(CALLS)]
    expected = written(files, dones, CALLS)
    assert resumed(files) == set(CALLS)
    assert heat_file(files.result).read_bytes() == expected
    # Three of the calls lose their rows, as after a kill.
    lines = files.result.read_bytes().splitlines(keepends=True)
    files.result.write_bytes(b"".join(lines[:4]))
    stays = resumed(files)
    assert len(read_heat(heat_file(files.result))) == len(stays) < 6
    again = [each for each in dones if each.name not in stays]
    assert written(files, reversed(again), CALLS) == expected


def test_rows_that_are_retried_and_pass_have_nothing_left(files):
    dones = [done(index, name) for index, name in enumerate(CALLS)]
    written(files, dones, CALLS)
    assert resumed(files, retry=("error",)) == set()
    assert not read_heat(heat_file(files.result))
    passes = [
        Done(each.index, each.name, Verdict.PASS, f"{each.name},pass,pass,\r\n".encode())
        for each in dones
    ]
    assert written(files, passes, CALLS) == b""
    assert {path.suffix for path in files.result.parent.iterdir()} == {".csv", ".json"}
    assert load_settings(files.settings).completed


STEPS = ("write", "replace", "rename", "unlink", "fsync", "ftruncate")


def killed_at(step: int, action) -> bool:
    """Run an action in a process that is killed before its nth change of a file; return whether it was."""
    child = os.fork()
    if not child:
        left = itertools.count(1)
        for name in STEPS:
            setattr(os, name, dying(getattr(os, name), left, step))
        action()
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def dying(function, left, step):
    def call(*arguments, **keywords):
        if next(left) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **keywords)

    return call


def test_of_a_call_that_was_done_twice_the_later_one_counts(files):
    written(files, [done(0, CALLS[0], scale=1.0), done(0, CALLS[0], scale=8.0)])
    [found] = read_heat(heat_file(files.result)).values()
    assert float(found.blocks.max()) == pytest.approx(8.0)


def test_a_writer_that_dies_at_any_step_has_left_the_heat_of_each_row(tmp_path):
    dones = [done(index, name, 2) for index, name in enumerate(CALLS)]
    for step in range(1, 400):
        files = start_run(tmp_path / f"story{step}", "1", RunSettings({"dump": "d"}))
        is_over = not killed_at(step, lambda files=files: written(files, dones))
        if files.result.exists():
            journal = Journal.reopen(files.result, files.details)
            journal.append(dones)
            journal.complete(CALLS)
            names = list(read_heat(heat_file(files.result)))
            assert names == [f"{call}.forward.output.{n}" for call in CALLS for n in range(2)], step
        if is_over:
            break
    assert 10 < step < 399


@pytest.mark.parametrize("retries", [False, True])
def test_a_kill_at_any_step_ends_with_the_same_arrays(tmp_path, retries):
    dones = [done(index, name, 2) for index, name in enumerate(CALLS)]

    def run(files) -> None:
        if retries:
            resumed(files, retry=("error",))
        written(files, dones, CALLS)

    whole = start_run(tmp_path / "whole", "1", RunSettings({"dump": "d"}))
    expected = written(whole, dones, CALLS)
    for step in range(1, 400):
        files = start_run(tmp_path / f"story{step}", "1", RunSettings({"dump": "d"}))
        if retries:
            written(files, dones, CALLS)
        is_over = not killed_at(step, lambda files=files: run(files))
        there = read_heat(heat_file(files.result))
        assert all(heat.blocks.shape == (5, 12) for heat in there.values())
        stays = resumed(files) if files.result.exists() else set()
        assert {name.rsplit(".", 3)[0] for name in read_heat(heat_file(files.result))} == stays
        written(files, [each for each in dones if each.name not in stays], CALLS)
        assert heat_file(files.result).read_bytes() == expected, step
        assert not heat_file(files.result).with_suffix(".log").exists()
        if is_over:
            break
    assert 10 < step < 399


def test_files_of_other_commands_have_no_heat(tmp_path):
    assert heat_file(tmp_path / "compare_calls_20260101120000.csv") is None
    log = HeatLog(tmp_path / "compare_calls_20260101120000.csv")
    log.append([done(0, CALLS[0])])
    keep_heats(tmp_path / "compare_calls_20260101120000.csv", ())
    finish_heats(tmp_path / "compare_calls_20260101120000.csv", ())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("data", [b"", b"no zip", b"PK\x03\x04" + b"\0" * 100])
def test_a_file_that_is_no_archive_reads_as_empty(tmp_path, data):
    path = heat_file(tmp_path / "accuracy_checking_result_1.csv")
    path.write_bytes(data)
    assert read_heat(path) == {}
    assert read_heat(heat_file(tmp_path / "accuracy_checking_result_2.csv")) == {}
    assert run_files(tmp_path / "accuracy_checking_result_1.csv").result.name in path.name.replace(
        "heat_", "accuracy_checking_result_"
    ).replace(".npz", ".csv")
