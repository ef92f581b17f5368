"""What TensorFlow's debuggers wrote is read without TensorFlow; tests/data/tensorflow has real dumps."""

import contextlib
import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from ray_precheck.commands.compare.run import compare_captures
from ray_precheck.commands.locate.run import locate_captures
from ray_precheck.commands.overflow.options import OverflowConfig
from ray_precheck.commands.overflow.run import check_overflow
from ray_precheck.errors import DumpError
from ray_precheck.formats.conversion import CaptureWriter, as_our_dump, format_of
from ray_precheck.formats.protobuf import MOST_REPEATED_BYTES, Budget, tensor_of
from ray_precheck.formats.tensorflow import FORMAT, seen_tensors
from ray_precheck.trace.flow import FlowRecord, flow_of
from ray_precheck.trace.side import CaptureSide, open_side
from tests.unit.formats.tensorflow_files import (
    BFLOAT16,
    CODES,
    FULL_HEALTH,
    creation,
    event_set,
    execution,
    listed,
    tensor,
    trace,
    unpacked,
)

pytestmark = pytest.mark.unit
FAULT = "TensorFlow.MatMul.0.forward"


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory.mktemp("tensorflow"))


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def read(path: Path) -> CaptureSide:
    return open_side(as_our_dump(path) / "dump.json")


def makers(side: CaptureSide) -> dict[tuple[str, str], str]:
    """Return the record that gave each value of a record."""
    flow = flow_of(FlowRecord(entry, side.items(entry)) for entry in side.entries)
    return {place: producer.key for place, producer in flow.producers.items()}


def own_names(side: CaptureSide) -> dict[str, str]:
    return {entry.key: str(side.modules.get(entry.key, "")) for entry in side.entries}


@pytest.mark.parametrize("how", ["graph", "eager", "session"])
def test_every_value_of_a_step_is_traced_to_the_operator_that_gave_it(
    dumps: Path, how: str
) -> None:
    with read(dumps / how) as side:
        given_by = makers(side)
    steps = ["Conv2D.0", "Relu.0", "MaxPool.0", "Conv2D.1", "Relu.1", "Reshape.0", "MatMul.0"]
    for before, after in itertools.pairwise(steps):
        made, got = (f"TensorFlow.{name}.forward" for name in (before, after))
        assert given_by[got, "input.0"] == made
    # The gradient of the second convolution's filter, from what went through it.
    gradient = {
        path: maker
        for (key, path), maker in given_by.items()
        if key == "TensorFlow.Conv2DBackpropFilter.0.forward"
    }
    assert gradient["input.0"] == "TensorFlow.MaxPool.0.forward"
    assert gradient["input.2"].startswith("TensorFlow.ReluGrad.")


def test_a_variable_that_an_update_changed_is_read_from_that_update(dumps: Path) -> None:
    with read(dumps / "graph") as side:
        given_by, names = makers(side), own_names(side)
        second = [key for key in names if key.startswith("TensorFlow.Conv2D.")][2]
        weights = given_by[second, "input.1"]
        assert weights.startswith("TensorFlow.ReadVariableOp")
        update = next(maker for (key, _), maker in given_by.items() if key == weights)
        assert update.startswith("TensorFlow.AssignSubVariableOp")
        assert given_by[update, "input.1"].startswith("TensorFlow.Mul")


def test_a_function_passes_on_what_its_graph_made(dumps: Path) -> None:
    with read(dumps / "graph") as side:
        given_by = makers(side)
    passed = [
        maker for (key, _), maker in given_by.items() if key.startswith("TensorFlow.Function.")
    ]
    assert "TensorFlow.Mean.0.forward" in passed
    arguments = [maker for (key, _), maker in given_by.items() if ".Placeholder." in key]
    assert set(arguments) <= {key for key in arguments if key.startswith("TensorFlow.Const.")}


def test_names_of_graphs_and_lines_of_the_script_are_told(dumps: Path) -> None:
    with read(dumps / "graph_wrong") as side:
        assert own_names(side)[FAULT] == "fc1/MatMul"
        assert any("/home/user/lenet.py" in line for line in side.stacks[FAULT])
        assert not any("dumping_callback" in line for line in side.stacks[FAULT])


@pytest.mark.parametrize("how", ["graph", "eager"])
def test_compare_and_locate_name_the_operator_with_the_planted_fault(
    dumps: Path, tmp_path: Path, how: str
) -> None:
    wrong, golden = dumps / f"{how}_wrong", dumps / how
    (report,) = compare_captures(wrong, golden, out=tmp_path / "c").reports
    errors = report.results[report.results["Result"] == "error"]
    assert errors["NPU Name"].iloc[0].startswith(FAULT)
    assert not report.summary.results["unmatched"]
    found = locate_captures(wrong, golden, out=tmp_path / "l")
    assert [each.root.key for each in found.places] == [FAULT]


def test_two_honest_runs_do_not_differ(dumps: Path, tmp_path: Path) -> None:
    (report,) = compare_captures(dumps / "graph", dumps / "graph", out=tmp_path).reports
    assert set(report.results["Result"]) == {"pass"}


@pytest.mark.parametrize("how", ["graph_nan", "eager_nan", "health_nan"])
def test_overflow_check_names_the_operator_that_made_nan(
    dumps: Path, tmp_path: Path, how: str
) -> None:
    report = check_overflow(OverflowConfig(dump=dumps / how, out=tmp_path), show_progress=False)
    born = [row.api for row in report.rows if row.birth == "birth"]
    assert born == [FAULT]


def test_a_capture_without_values_says_what_it_lacks(
    dumps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_our_dump(dumps / "health_nan")
    assert "tensor_debug_mode was FULL_HEALTH" in capsys.readouterr().err


def test_runs_of_a_session_are_found_below_their_folder_or_by_themselves(dumps: Path) -> None:
    whole = dumps / "session"
    run = next(whole.iterdir())
    for path in (whole, run):
        assert format_of(path) is FORMAT
    with read(run) as one, read(whole) as both:
        assert 2 * len(one.entries) == len(both.entries)


def test_what_the_debugger_saw_has_the_names_and_times_of_precision_tool(
    dumps: Path, tmp_path: Path
) -> None:
    seen = list(seen_tensors(dumps / "session", CaptureWriter(tmp_path)))
    names = {each.name for each in seen}
    assert {"LeNet/conv1_1/Conv2D:0", "LeNet/fc1_1/MatMul:0"} <= names
    assert {each.run for each in seen} == {0, 1}
    assert all(each.time_us > 10**15 for each in seen)
    assert all(np.load(each.values).size for each in seen)


def test_a_graph_on_its_own_is_connected_through_identities(tmp_path: Path) -> None:
    one = np.ones((2, 2), np.float32)
    graphs = creation("g", "Relu", "a", []) + creation("g", "Identity", "i", ["a:0"])
    graphs += creation("g", "Exp", "b", ["i:0"])
    traces = trace(1.0, "g", "a", tensor(one)) + trace(2.0, "g", "b", tensor(one * 2))
    traces += trace(3.0, "g", "a", tensor(one * 3)) + trace(4.0, "g", "b", tensor(one * 4))
    with read(event_set(tmp_path / "d", graphs, traces)) as side:
        given_by = makers(side)
    assert given_by["TensorFlow.Exp.0.forward", "input.0"] == "TensorFlow.Relu.0.forward"
    assert given_by["TensorFlow.Exp.1.forward", "input.0"] == "TensorFlow.Relu.1.forward"


def test_a_torn_file_is_read_up_to_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = tensor(np.ones(2, np.float32))
    ran = execution(1.0, "Relu", [], [1], one) + execution(2.0, "Exp", [1], [2], one)
    with read(event_set(tmp_path / "d", ran=ran[:-9])) as side:
        assert [entry.key for entry in side.entries] == ["TensorFlow.Relu.0.forward"]
    assert "ends within the record at byte" in capsys.readouterr().err


def test_a_capture_of_a_script_that_ran_nothing_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="holds no operation that has run"):
        as_our_dump(event_set(tmp_path / "d"))


DTYPES = [np.dtype(name) for name in CODES if name != "bfloat16"] + [BFLOAT16]


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(DTYPES), array_shapes(min_dims=0, max_dims=3, min_side=0))
def test_tensors_are_read_as_they_were_written(
    data: st.DataObject, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> None:
    drawn = np.float32 if dtype == BFLOAT16 else dtype
    values = data.draw(arrays(drawn, shape)).astype(dtype)
    expected = values.astype(np.float32) if dtype == BFLOAT16 else values
    written = [tensor(values)] if values.size else []
    for message in [*written, listed(values, shape)]:
        found = tensor_of(message, Budget())
        assert found.dtype == dtype.name
        assert found.values is not None
        np.testing.assert_array_equal(found.values, expected)


def test_a_value_that_stands_for_all_costs_no_more_than_its_budget() -> None:
    one, budget = np.ones(1, np.float32), Budget()
    found = tensor_of(listed(one, (1000,)), budget)
    assert found.values is not None
    assert found.values.tolist() == [1.0] * 1000
    assert budget.left == MOST_REPEATED_BYTES - 4 * 999
    assert tensor_of(listed(one, (1 << 40,)), budget).values is None
    assert tensor_of(listed(one, (1 << 62, 1 << 62)), budget).values is None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["Relu", "MatMul", "Tanh"]), st.integers(0, 3)), min_size=1)
)
def test_a_chain_of_eager_operations_keeps_its_order_and_flow(
    tmp_path_factory: pytest.TempPathFactory, chain: list[tuple[str, int]]
) -> None:
    ran = b""
    for place, (kind, back) in enumerate(chain):
        values = np.full(3, place, np.float32)
        before = [place - back] if 0 < place - back + 1 <= place else []
        ran += execution(float(place), kind, before, [place + 1], tensor(values))
    folder = event_set(tmp_path_factory.mktemp("chain") / "d", ran=ran)
    with read(folder) as side:
        assert [entry.call.split(".")[1] for entry in side.entries] == [kind for kind, _ in chain]
        given_by = makers(side)
        for place, (_, back) in enumerate(chain):
            if 0 < place - back + 1 <= place and place - back >= 1:
                producer = given_by[side.entries[place].key, "input.0"]
                assert producer == side.entries[place - back - 1].key


@pytest.mark.parametrize(
    "rounds", [60, pytest.param(3000, marks=[pytest.mark.exhaustive, pytest.mark.timeout(3000)])]
)
def test_mutated_files_are_read_or_refused_in_a_sentence(
    dumps: Path, tmp_path: Path, rounds: int
) -> None:
    draw = random.Random(33)
    sources = [
        {
            each.relative_to(dumps / name): each.read_bytes()
            for each in (dumps / name).rglob("*")
            if each.is_file()
        }
        for name in ("graph", "health_nan", "session")
    ]
    for turn in range(rounds):
        folder = tmp_path / str(turn)
        files = draw.choice(sources)
        changed = draw.choice([path for path in files if "source_files" not in path.name])
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(mutated(draw, content) if path == changed else content)
        before = sorted(folder.rglob("*"))
        if format_of(folder) is not None:
            with contextlib.suppress(DumpError):
                as_our_dump(folder)
        assert sorted(folder.rglob("*")) == before


def mutated(draw: random.Random, content: bytes) -> bytes:
    data = bytearray(content)
    for _ in range(draw.randint(1, 8)):
        if not data:
            break
        at = draw.randrange(len(data))
        what = draw.randrange(4)
        if what == 0:
            data[at] = draw.randrange(256)
        elif what == 1:
            data[at : at + 4] = draw.choice([b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x80\x80\x80\x80"])
        elif what == 2:
            del data[at : at + draw.randint(1, 64)]
        else:
            del data[at:]
    return bytes(data)


def test_numbers_in_place_of_values_are_not_believed_where_they_are_none(tmp_path: Path) -> None:
    numbers = np.array([0, 0, np.nan, 1e300, 4, 0, 0, 1, 0, 0, 0])
    good = np.array([0, 0, 1, 1, 4, 0, 0, 1, 0, 0, 0.0])
    graphs = creation("g", "Relu", "a", []) + creation("g", "Exp", "b", ["a:0"])
    traces = trace(1.0, "g", "a", tensor(numbers), FULL_HEALTH)
    traces += trace(2.0, "g", "b", tensor(good), FULL_HEALTH)
    with read(event_set(tmp_path / "d", graphs, traces)) as side:
        assert [entry.key for entry in side.entries] == ["TensorFlow.Exp.0.forward"]
        (item,) = [each for each in side.items(side.entries[0]) if each.part == "output"]
        assert (item.dtype, item.statistic("health")["nan"]) == ("float32", 1)
