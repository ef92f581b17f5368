"""MegEngine's dumps are captures: read whole, compared by its measure, and searched for its roots."""

import contextlib
import json
import math
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from ray_precheck.commands.compare.closing import format_comparison_summary
from ray_precheck.commands.compare.run import compare_captures
from ray_precheck.commands.locate.run import locate_captures
from ray_precheck.commands.locate.walk.nouns import RootKind
from ray_precheck.errors import DumpError, UsageError
from ray_precheck.foreign import open_file
from ray_precheck.formats.conversion import as_our_dump, format_of
from ray_precheck.formats.megengine_variables import TornError, read_variable
from ray_precheck.trace.flow import FlowRecord, flow_of
from ray_precheck.trace.side import open_side

pytestmark = pytest.mark.unit
VARIABLES = 23
DATA = Path(__file__).parents[2] / "data" / "megengine"
CODES = {
    "float32": 0,
    "uint8": 1,
    "int8": 2,
    "int16": 3,
    "int32": 4,
    "float16": 9,
    "bool": 12,
    "uint16": 13,
}
_TITLE = "var={{id:{id}, layout:{{{layout} {dtype}}}, {dtype}, owner:{owner}, name:{name}, slot:0, s, 2, 2}}"
# Statistics of 3 digits are off by half a unit of the last one.
OF_3_DIGITS = 6e-3


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def packed(
    title: str, values: np.ndarray[Any, Any], code: int | None = None, dimensions: int = 7
) -> bytes:
    """Return a file of a variable as MegEngine writes it."""
    name = title.encode()
    shape = [*values.shape, *[0] * (dimensions - values.ndim)]
    head = np.array(
        [len(name), CODES[values.dtype.name] if code is None else code, dimensions, *shape], "<u4"
    )
    return (
        head.tobytes()
        + name
        + np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<")).tobytes()
    )


def titled(
    number: int, name: str, owner: str, values: np.ndarray[Any, Any], inputs: Sequence[int] = ()
) -> str:
    layout = ",".join(f"{size}(1)" for size in values.shape)
    dtype = values.dtype.name.capitalize()
    own = _TITLE.format(id=number, layout=layout, dtype=dtype, owner=owner, name=name)
    got = [
        _TITLE.format(id=each, layout="1(1)", dtype=dtype, owner="x[0]{X}", name="x")[4:]
        for each in inputs
    ]
    shown = got if len(got) == 1 else [f"{place}={each}" for place, each in enumerate(got)]
    return f"{own} owner_opr_inputs={' '.join(shown)}"


def records(path: Path) -> dict[str, Any]:
    """Return the records of a capture by their keys."""
    found: dict[str, Any] = json.loads((as_our_dump(path) / "dump.json").read_text())["data"]
    return found


def numbers(text: str) -> list[int]:
    """Return the variables that a text of MegEngine's compare_binary_iodump has."""
    blocks = text.split(" not equal: ")[:-1]
    return [int(re.findall(r"var=\{id:(\d+)", block)[-1]) for block in blocks]


def number_in(key: str) -> int:
    return int(key.split(".")[2])


@pytest.mark.parametrize("name", ["default", "default.txt"])
def test_each_operator_is_a_record_whose_inputs_are_known(name: str) -> None:
    found = records(DATA / name)
    assert len(found) == VARIABLES
    convolution = found["MegEngine.ConvolutionForward.9.forward"]
    assert [each["name"] for each in convolution["input_args"]] == ["data", "narrow.weight"]
    assert convolution["output"][0]["name"] == "narrow.Convolution"
    assert convolution["output"][0]["shape"] == [1, 4, 8, 8]
    assert convolution["operator"]["type"] == "ConvolutionForward"
    with open_side(as_our_dump(DATA / name) / "dump.json") as side:
        assert side.header.framework == "megengine"
        flow = flow_of([FlowRecord(entry, side.items(entry)) for entry in side.entries])
    maker = flow.producer("MegEngine.PoolingForward.33.forward", "input.0")
    assert maker is not None
    assert maker.key == "MegEngine.Elemwise.31.forward"


def test_a_text_and_a_folder_of_one_run_agree_as_far_as_the_digits_of_the_text_go() -> None:
    whole, text = records(DATA / "default"), records(DATA / "default.txt")
    assert list(whole) == list(text)
    for key, record in whole.items():
        for ours, theirs in zip(record["output"], text[key]["output"], strict=True):
            assert [ours[f] for f in ("dtype", "shape", "variable")] == [
                theirs[f] for f in ("dtype", "shape", "variable")
            ]
            for name in ("Max", "Min", "Mean", "Norm"):
                assert math.isclose(ours[name], theirs[name], rel_tol=OF_3_DIGITS, abs_tol=1e-6), (
                    key
                )


@pytest.mark.parametrize(("name", "limit"), [("naive", 1e-8), ("faulty", 1e-3)])
def test_the_variables_in_error_are_those_that_megengines_own_tool_lists(
    tmp_path: Path, name: str, limit: float
) -> None:
    (report,) = compare_captures(
        DATA / "default", DATA / name, out=tmp_path, standard="megengine", max_err=limit
    ).reports
    rows = report.results
    failing = rows[rows["Result"] == "error"]["NPU Name"]
    assert [number_in(each) for each in failing] == numbers((DATA / f"{name}.diff").read_text())


def test_rows_tell_what_came_with_the_inputs_and_the_closing_lines_have_quantiles(
    tmp_path: Path,
) -> None:
    (report,) = compare_captures(
        DATA / "default", DATA / "faulty", out=tmp_path, standard="megengine"
    ).reports
    told = dict(zip(report.results["NPU Name"], report.results["Err_message"], strict=True))
    pooled = json.loads(told["MegEngine.PoolingForward.33.forward.output.0"])
    assert pooled[1].startswith("variable 33 (Pooling): error 0.")
    assert pooled[1].endswith("of its inputs at most 0, ratio inf")
    assert "above 0.001" in pooled[0]
    product = json.loads(told["MegEngine.MatrixMul.54.forward.output.0"])
    assert re.fullmatch(
        r"variable 54 .*: error 0\.\d+, of its inputs at most 0\.\d+, ratio [0-9.]+", product[1]
    )
    lines = format_comparison_summary(report.summary)
    errors = report.summary.errors
    assert len(errors) == VARIABLES
    assert errors[11] == 0
    assert (
        f"errors of {VARIABLES} variables, candidates for --max-err: 50 % 0, 90 % {errors[20]:.3g}, 99 %"
        f" {errors[-1]:.3g}, largest {errors[-1]:.3g}" in lines
    )


@pytest.mark.parametrize(("name", "limit"), [("naive", 1e-8), ("faulty", 1e-3)])
def test_the_roots_are_those_of_megengines_own_tree(
    tmp_path: Path, name: str, limit: float
) -> None:
    report = locate_captures(
        DATA / "default", DATA / name, out=tmp_path, standard="megengine", max_err=limit
    )
    roots = re.findall(r"^id:(\d+)$", (DATA / f"{name}.roots").read_text(), re.MULTILINE)
    assert [number_in(place.root.key) for place in report.places] == [int(each) for each in roots]
    (dump,) = report.dumps
    failing = numbers((DATA / f"{name}.diff").read_text())
    passed = [number_in(each.key) for each in dump.located.passed]
    assert sorted([*passed, *map(int, roots)]) == failing


def test_a_root_names_what_is_upstream_and_downstream(tmp_path: Path) -> None:
    report = locate_captures(DATA / "default", DATA / "faulty", out=tmp_path, standard="megengine")
    (place,) = report.places
    assert place.root.kind is RootKind.ESTIMATE
    assert place.root.reached == 6
    assert "inputs: variable 31 (ADD) with error 0" in place.root.message
    assert "failing readers: variable " in place.root.message


def test_within_the_limit_no_operator_is_to_blame(tmp_path: Path) -> None:
    report = locate_captures(DATA / "default", DATA / "naive", out=tmp_path, standard="megengine")
    assert report.places == ()
    assert report.judged == VARIABLES


def changed(tmp_path: Path, changes: dict[int, Any], name: str = "changed") -> Path:
    """Return a copy of the real folder in which some variables have other values."""
    folder = tmp_path / name
    shutil.copytree(DATA / "default", folder)
    for number, change in changes.items():
        path = folder / f"{number:06x}"
        with open_file(path) as file:
            stored = read_variable(file)
        assert stored.values is not None
        path.write_bytes(packed(stored.title, change(stored.values)))
    return folder


def to_nan(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    found = values.copy()
    found.flat[3] = math.nan
    return found


def test_nan_and_other_shapes_are_failures_and_can_be_roots(tmp_path: Path) -> None:
    """MegEngine's tree leaves both out."""
    target = changed(tmp_path, {33: to_nan, 54: lambda values: values[:, :3]})
    report = locate_captures(target, DATA / "default", out=tmp_path / "out", standard="megengine")
    found = {number_in(place.root.key): place.root for place in report.places}
    assert set(found) == {33, 54}
    assert found[33].kind is RootKind.NON_FINITE
    assert "1 of 100 elements are NaN or infinite" in found[33].message
    assert "the shapes differ" in found[54].message


def test_another_input_or_weight_is_named_as_what_the_run_was_given(tmp_path: Path) -> None:
    target = changed(tmp_path, {5: lambda values: values + np.float32(0.1)})
    kinds = {number_in(key): each["output"][0] for key, each in records(DATA / "default").items()}
    assert kinds[5]["argument"] == "data"
    report = locate_captures(target, DATA / "default", out=tmp_path / "out", standard="megengine")
    assert [(number_in(place.root.key), place.root.kind) for place in report.places] == [
        (5, RootKind.INPUT)
    ]


def test_texts_are_judged_by_what_they_hold(tmp_path: Path) -> None:
    (same,) = compare_captures(
        DATA / "default.txt",
        DATA / "naive.txt",
        out=tmp_path / "same",
        standard="megengine",
        max_err=1e-8,
    ).reports
    assert same.summary.results["error"] == 0
    assert same.summary.results["pass"] == VARIABLES
    text = (DATA / "default.txt").read_text()
    pooled = text.index("var33 produced")
    largest = re.compile(r"max=(\S+)").search(text, pooled)
    assert largest is not None
    other = tmp_path / "other.txt"
    other.write_text(f"{text[: largest.start(1)]}{float(largest[1]) * 1.1}{text[largest.end(1) :]}")
    report = locate_captures(
        other, DATA / "default.txt", out=tmp_path / "out", standard="megengine"
    )
    (place,) = report.places
    assert number_in(place.root.key) == 33
    assert "Max is off by" in place.root.message


def test_inputs_that_an_operator_left_are_read_where_their_maker_has_no_file(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "dump"
    folder.mkdir()
    ones = np.ones((2, 2), np.float32)
    (folder / "000003").write_bytes(packed(titled(3, "y", "add[2]{Elemwise}", ones, [1, 2]), ones))
    (folder / "000003-inp0").write_bytes(
        packed(f"inp0: {titled(1, 'x', 'h2d[0]{Host2DeviceCopy}', ones)}", ones)
    )
    found = records(folder)
    assert list(found) == ["MegEngine.Host2DeviceCopy.1.forward", "MegEngine.Elemwise.3.forward"]
    first, second = found["MegEngine.Elemwise.3.forward"]["input_args"]
    assert first["variable"] == "1"
    assert second is None


def test_outputs_of_one_operator_are_one_record_and_older_titles_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    folder.mkdir()
    values = np.arange(4, dtype=np.int32)
    for number in (1, 2):
        title = titled(number, f"part{number}", "split(x)[0]{Split}", values).replace("id:", "id::")
        title = title.replace("slot:0", f"slot:{number - 1}")
        (folder / f"{number:06x}").write_bytes(packed(title, values))
    found = records(folder)
    assert list(found) == ["MegEngine.Split.1.forward"]
    assert [each["variable"] for each in found["MegEngine.Split.1.forward"]["output"]] == ["1", "2"]


def test_a_file_that_was_cut_is_named_and_the_others_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = changed(tmp_path, {})
    path = folder / "000009"
    path.write_bytes(path.read_bytes()[:-5])
    assert len(records(folder)) == VARIABLES - 1
    told = capsys.readouterr().err
    assert "files that could not be read: 000009: 1019 bytes follow its title" in told
    for each in folder.iterdir():
        each.write_bytes(each.read_bytes()[:-1])
    with pytest.raises(DumpError, match="MegEngine's dump of operators: it holds no record"):
        as_our_dump(folder)


def test_folders_of_others_are_not_taken(tmp_path: Path) -> None:
    for folder in ("step0", "rank0", "proc12", "000001"):
        (tmp_path / "a" / folder).mkdir(parents=True)
    assert format_of(tmp_path / "a") is None
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "abcdef").write_text("a file that is named so")
    (tmp_path / "b.txt").write_text("variables produced: none")
    assert format_of(tmp_path / "b") is None
    assert format_of(tmp_path / "b.txt") is None


def test_the_limit_needs_its_standard_and_locate_its_golden_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--max-err 0\.01 is the limit of --standard megengine"):
        compare_captures(DATA / "default", DATA / "naive", out=tmp_path, max_err=0.01)
    with pytest.raises(UsageError, match="name the golden one with -gp"):
        locate_captures(DATA / "default", out=tmp_path, standard="megengine")
    with pytest.raises(UsageError, match="is of megengine, whose operators cannot be replayed"):
        locate_captures(DATA / "default", out=tmp_path)


def test_the_usual_search_estimates_what_cannot_be_replayed(tmp_path: Path) -> None:
    report = locate_captures(DATA / "faulty", DATA / "default", out=tmp_path)
    assert number_in(report.places[0].root.key) == 33


VALUES = st.sampled_from([name for name in CODES if name != "bool"]).flatmap(
    lambda dtype: arrays(dtype, array_shapes(min_dims=1, max_dims=7, min_side=1, max_side=3))
)


@given(
    VALUES, st.text(st.characters(exclude_characters=",{}", exclude_categories=["Cs"]), max_size=20)
)
@settings(max_examples=60, deadline=None)
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, values: np.ndarray[Any, Any], name: str
) -> None:
    path = tmp_path_factory.mktemp("one") / "000001"
    title = titled(1, name, "op[0]{Op}", values)
    path.write_bytes(packed(title, values))
    with open_file(path) as file:
        stored = read_variable(file)
    assert stored.title == title
    assert stored.dtype == values.dtype.name
    assert stored.values is not None
    np.testing.assert_array_equal(stored.values, values)
    (found,) = records(path.parent).values()
    assert found["output"][0]["name"] == name
    assert found["output"][0]["shape"] == list(values.shape)


@given(VALUES)
@settings(max_examples=40, deadline=None)
def test_what_a_text_says_is_read(
    tmp_path_factory: pytest.TempPathFactory, values: np.ndarray[Any, Any]
) -> None:
    path = tmp_path_factory.mktemp("one") / "dump.txt"
    wide = values.astype(np.float64)
    with np.errstate(all="ignore"):
        told = [wide.min(), wide.max(), wide.mean(), np.sqrt(np.mean(np.square(wide)))]
    first = ", ".join(f"{each:.4g}" for each in wide.flat[:5]) + (", ..." if wide.size > 5 else "")
    layout = ",".join(f"{size}(1)" for size in values.shape)
    line = "[{}]min={:.3g} max={:.3g} mean={:.3g} l2={:.3g} sd=N/A s".format(first, *told)
    path.write_text(
        f"var7 produced: name=a b layout={{{layout} {values.dtype.name.capitalize()}}} owner_opr=f(x)[6]{{F}}"
        f" opr6\n deps:\n  [i0]var3: [1] s\n  [i1]var4:  <host value[s]> [1] s\n val: {line}\n"
    )
    (record,) = records(path).values()
    (output,) = record["output"]
    assert (output["name"], output["dtype"], output["shape"]) == (
        "a b",
        values.dtype.name,
        [*values.shape],
    )
    for name, value in zip(("Min", "Max", "Mean"), told[:3], strict=True):
        assert output[name] == float(f"{value:.3g}") or (
            math.isnan(value) and math.isnan(output[name])
        )
    assert len(output["first"]) == min(5, values.size)


def test_empty_tensors_have_the_shape_of_their_title(tmp_path: Path) -> None:
    empty = np.zeros((2, 0), np.float32)
    (tmp_path / "000001").write_bytes(packed(titled(1, "x", "op[0]{Op}", empty), empty))
    assert records(tmp_path)["MegEngine.Op.1.forward"]["output"][0]["shape"] == [2, 0]


@pytest.mark.parametrize("shape", [(1 << 30, 1 << 30, 0), (4, 0, 1 << 31, 1 << 31)])
def test_shapes_of_no_tensor_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    title = titled(1, "x", "op[0]{Op}", np.ones(1, np.float32))
    head = np.array([len(title), 0, 7, *shape, *[0] * (7 - len(shape))], "<u4").tobytes()
    (tmp_path / "000001").write_bytes(head + title.encode())
    with (
        open_file(tmp_path / "000001") as file,
        pytest.raises(TornError, match="is none of a tensor"),
    ):
        read_variable(file)


def test_a_title_that_contradicts_its_file_does_not_change_the_shape(tmp_path: Path) -> None:
    title = titled(1, "x", "op[0]{Op}", np.ones(1, np.float32))
    (tmp_path / "000001").write_bytes(packed(title, np.zeros((2, 0), np.float32)))
    assert records(tmp_path)["MegEngine.Op.1.forward"]["output"][0]["shape"] == [2, 0]


def test_bfloat16_is_read_as_numbers_and_small_types_have_no_values(tmp_path: Path) -> None:
    halves = np.array([0x3F80, 0xC000], np.uint16)
    (tmp_path / "000001").write_bytes(packed(titled(1, "x", "op[0]{Op}", halves), halves, code=11))
    (tmp_path / "000002").write_bytes(packed(titled(2, "y", "op[1]{Op}", halves), halves, code=7))
    found = records(tmp_path)
    (one,), (other,) = (each["output"] for each in found.values())
    assert (one["dtype"], one["Max"], one["Min"]) == ("bfloat16", 1.0, -2.0)
    assert other["dtype"] == "intb4"
    assert "Max" not in other


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_mutated_file_is_read_or_refused_with_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("mutated")
    name = data.draw(st.sampled_from(["default/000009", "default/000021", "default.txt"]))
    raw = bytearray((DATA / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(raw) - 1, 4000)))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    path = folder / ("text.txt" if name.endswith("txt") else name.rpartition("/")[2])
    path.write_bytes(bytes(raw))
    if path.suffix != ".txt":
        with open_file(path) as file, contextlib.suppress(TornError):
            read_variable(file)
        path = folder
    try:
        as_our_dump(path)
    except DumpError as error:
        assert str(error).startswith(f"cannot read {path} as MegEngine's dump of operators: ")  # noqa: PT017
