"""Captures of precision_tool are read as dumps: both layouts and sides, graphs, and what goes wrong."""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from precision_data import (
    GUIDE,
    RUN,
    STARTED,
    V0_1_11,
    Capture,
    NpuOperator,
    in_files,
    save,
)

from ray_precheck.errors import DumpError
from ray_precheck.formats.conversion import as_our_dump, format_of
from ray_precheck.schema.dtypes import Array
from ray_precheck.trace.flow import FlowRecord, flow_of
from ray_precheck.trace.items import Item
from ray_precheck.trace.side import CaptureSide, open_side

pytestmark = pytest.mark.unit
BOTH = pytest.mark.parametrize("layout", [GUIDE, V0_1_11])
TF_FOLDER = {GUIDE: "dump/cpu", V0_1_11: "tf/dump"}
X = np.arange(6, dtype=np.float32).reshape(2, 3)
W = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
Y = X @ W
RELU = np.maximum(Y, 0)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CMD_ROOT_PATH", str(tmp_path / "no_ascend"))


def small(layout: str, **changes: Any) -> Capture:
    """A fused product, a change of layout that the model does not have, and what TensorFlow has of it."""
    operators = [
        NpuOperator(
            "MatMulV2",
            "net/fc/MatMul_Relu",
            [X, W],
            [RELU],
            ["x:0", "w:0"],
            ["net/fc/Relu:0"],
            ["net/fc/MatMul", "net/fc/Relu"],
            task=3,
        ),
        NpuOperator(
            "TransData", "trans_TransData_5", [RELU], [RELU], ["net/fc/MatMul_Relu:0"], task=4
        ),
        NpuOperator("Softmax", "net/prob", [RELU], [RELU], ["trans_TransData_5:0"], task=5),
    ]
    tensors = {"x:0": X, "net/fc/MatMul:0": Y, "net/fc/Relu:0": RELU, "net/prob:0": RELU}
    nodes = [
        ("x", "Placeholder", []),
        ("net/fc/MatMul", "MatMul", ["x", "w"]),
        ("net/fc/Relu", "Relu", ["net/fc/MatMul"]),
        ("net/prob", "Softmax", ["net/fc/Relu:0", "^x"]),
    ]
    return Capture(layout, **{"operators": operators, "tensors": tensors, "nodes": nodes} | changes)


def opened(path: Path) -> CaptureSide:
    return open_side(as_our_dump(path) / "dump.json")


def records(path: Path) -> dict[str, Mapping[str, Any]]:
    with opened(path) as side:
        return {entry.call: side.record(entry) for entry in side.entries}


def values(side: CaptureSide, item: Item) -> Array:
    found: Array = np.load(side.data_folder / item.file)
    return found


def tool(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((as_our_dump(path) / "tool.json").read_text())
    return found


@BOTH
@pytest.mark.parametrize("is_json", [False, True])
def test_the_npu_side_has_its_operators_in_order_with_what_the_graph_says(
    tmp_path: Path, layout: str, is_json: bool
) -> None:
    root = small(layout, is_json=is_json, is_raw=True).write(tmp_path / "precision_data")
    before = sorted(root.rglob("*"))
    with opened(root) as side:
        assert side.header.framework == "tensorflow"
        assert [entry.call for entry in side.entries] == [
            "Tensorflow.net_fc_MatMul_Relu.0",
            "Tensorflow.trans_TransData_5.0",
            "Tensorflow.net_prob.0",
        ]
        fused, trans, softmax = side.entries
        operator = side.record(fused)["operator"]
        assert (operator["type"], operator["name"]) == ("MatMulV2", "net/fc/MatMul_Relu")
        assert operator["origins"] == ["net/fc/Relu", "net/fc/MatMul"]
        assert (operator["graph"], operator["task"]) == ("ge_default_1", 3)
        assert operator["attributes"] == {"is_fixpipe": True, "alpha": 0.5}
        assert side.record(trans)["operator"]["origins"] == ["trans_TransData_5"]
        x, w, made = side.items(fused)
        assert [values(side, each).tolist() for each in (x, w, made)] == [
            each.tolist() for each in (X, W, RELU)
        ]
        assert made.origin == "net_fc_Relu:0"
        flow = flow_of(FlowRecord(entry, side.items(entry)) for entry in side.entries)
        # Both operators gave the same values: the graph alone knows whose the softmax got.
        producer = flow.producer(softmax.key, "input.0")
        assert producer is not None
        assert producer.key == trans.key
    assert sorted(root.rglob("*")) == before


@BOTH
def test_the_side_of_tensorflow_has_types_and_inputs_of_its_graph(
    tmp_path: Path, layout: str
) -> None:
    root = small(layout).write(tmp_path / "precision_data")
    found = records(root / TF_FOLDER[layout])
    assert [each.split(".")[1] for each in found] == [
        "x",
        "net_fc_MatMul",
        "net_fc_Relu",
        "net_prob",
    ]
    product = found["Tensorflow.net_fc_MatMul.0"]
    assert product["operator"]["type"] == "MatMul"
    assert product["operator"]["attributes"] == {"dim": -1, "scale": 0.5}
    assert product["input_args"][0]["origin"] == "x:0"
    softmax = found["Tensorflow.net_prob.0"]
    assert [each["origin"] for each in softmax["input_args"]] == ["net_fc_Relu:0"]
    assert softmax["input_args"][0]["variable"] == "net_fc_Relu:0"


@BOTH
def test_without_graphs_the_names_of_the_files_count(tmp_path: Path, layout: str) -> None:
    root = small(layout, has_graph=False, nodes=()).write(tmp_path / "precision_data")
    fused = records(root)["Tensorflow.net_fc_MatMul_Relu.0"]
    assert fused["operator"]["type"] == "MatMulV2"
    assert fused["operator"]["origins"] == ["net_fc_MatMul_Relu"]
    assert fused["output"][0]["origin"] == "net_fc_MatMul_Relu:0"
    assert records(root / TF_FOLDER[layout])["Tensorflow.net_prob.0"]["operator"]["type"] == ""


def test_a_path_names_one_side(tmp_path: Path) -> None:
    guide = small(GUIDE).write(tmp_path / "a" / "precision_data")
    newer = small(V0_1_11, is_raw=True).write(tmp_path / "b" / "copied from elsewhere")
    npu = {
        "Tensorflow.net_fc_MatMul_Relu.0",
        "Tensorflow.trans_TransData_5.0",
        "Tensorflow.net_prob.0",
    }
    for path in (
        guide,
        guide / "dump",
        guide / "dump/decode",
        newer,
        newer / "npu",
        newer / "npu/debug_0/dump",
        newer / f"npu/debug_0/dump/{RUN}/0",
        newer / "temp/decode/dump_decode/debug_0",
    ):
        assert set(records(path)) == npu, path
    for path in (guide / "dump/cpu", newer / "tf", newer / "tf/dump"):
        assert "Tensorflow.x.0" in records(path), path
    # Of what TensorFlow alone has left the whole folder is that side.
    alone = Capture(GUIDE, tensors={"x:0": X}).write(tmp_path / "c")
    assert set(records(alone)) == {"Tensorflow.x.0"}


def test_folders_outside_of_precision_data_are_known_by_the_names_of_files(tmp_path: Path) -> None:
    save(tmp_path / "decoded" / f"Add.a_b.7.12.{STARTED}.output.0.npy", X)
    save(tmp_path / "theirs" / f"a_b.0.{STARTED}.npy", X)
    assert records(tmp_path / "decoded")["Tensorflow.a_b.0"]["operator"]["stream"] == 12
    assert set(records(tmp_path / "theirs")) == {"Tensorflow.a_b.0"}
    save(tmp_path / "plain" / "conv1.0.npy", X)
    save(tmp_path / "plain" / "conv1.0.1.npy", X)
    (tmp_path / "plain" / "libfoo.so.1.2").write_bytes(b"")
    plain = format_of(tmp_path / "plain")
    assert plain is not None
    assert plain.title == "a folder of arrays"


def test_folders_of_ours_are_left_alone_whatever_stands_beside_them(tmp_path: Path) -> None:
    small(GUIDE).write(tmp_path / "data")
    ours = tmp_path / "data" / "dump" / "run7" / "step0" / "rank0"
    save(ours / "dump_tensor_data" / f"Add.a_b.7.{STARTED}.output.0.npy", X)
    (ours / "dump.json").write_text("{}")
    for path in (ours, ours.parent, ours.parent.parent):
        assert format_of(path) is None, path
    named = tmp_path / "other" / "dump" / "npu" / "step0"
    named.mkdir(parents=True)
    (named / "dump.json").write_text("{}")
    assert format_of(named.parent) is None


def test_the_newest_run_and_the_first_device_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = small(V0_1_11, is_raw=True).write(tmp_path / "precision_data")
    decoded = root / "temp/decode/dump_decode/debug_0"
    save(decoded / f"Add.of_an_older_run.1.{STARTED}.output.0.npy", X)
    newest = root / "npu/debug_0/dump/20220101000000"
    for device in (0, 1):
        (newest / str(device)).mkdir(parents=True)
        (newest / str(device) / f"Add.device_{device}.1.{STARTED + 9}").write_bytes(b"raw")
        save(decoded / f"Add.device_{device}.1.{STARTED + 9}.output.0.npy", X)
    assert set(records(root)) == {"Tensorflow.device_0.0"}
    assert "devices 0, 1" in capsys.readouterr().err
    assert set(records(newest / "1")) == {"Tensorflow.device_1.0"}


def test_the_sides_of_two_debug_runs_are_apart(tmp_path: Path) -> None:
    root = small(V0_1_11).write(tmp_path / "precision_data")
    save(root / "temp/decode/dump_decode/debug_1" / f"Add.other.1.{STARTED}.output.0.npy", X)
    (root / "npu/debug_1/dump").mkdir(parents=True)
    assert "Tensorflow.other.0" not in records(root)
    assert set(records(root / "npu/debug_1")) == {"Tensorflow.other.0"}


def test_names_in_mapping_csv_are_meant_and_no_file_is_renamed(tmp_path: Path) -> None:
    root = small(GUIDE, has_graph=False).write(tmp_path / "precision_data")
    folder = root / "dump/decode"
    name = "a" * 300
    save(folder / "0f3c9a.npy", X)
    save(tmp_path / "outside.npy", X)
    rows = [
        f"0f3c9a.npy,Add.{name}.7.{STARTED}.output.0.npy",
        f"missing.npy,Add.missing.7.{STARTED}.output.0.npy",
        f"../../../outside.npy,Add.outside.7.{STARTED}.output.0.npy",
        "torn",
    ]
    (folder / "mapping.csv").write_text("\n".join(rows))
    found = records(root)
    assert f"Tensorflow.{name}.0" in found
    assert not any("missing" in each or "outside" in each for each in found)
    assert (folder / "0f3c9a.npy").exists()


def test_runs_of_one_operator_are_counted(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path / "npu" / f"Add.a.7.{STARTED + number}.output.0.npy", X + number)
        save(tmp_path / "tf" / f"a.0.{STARTED + number}.npy", X + number)
        save(tmp_path / "tf" / f"a.1.{STARTED + number}.npy", X - number)
    for folder in ("npu", "tf"):
        with opened(tmp_path / folder) as side:
            assert [each.call for each in side.entries] == [f"Tensorflow.a.{n}" for n in range(3)]
            firsts = [side.items(each)[0].ends[0] for each in side.entries]
            assert firsts == [5.0, 6.0, 7.0]
    assert len(records(tmp_path / "tf")["Tensorflow.a.1"]["output"]) == 2


def test_a_file_that_cannot_be_read_is_a_gap_and_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "decoded"
    for index, content in enumerate((b"", b"\x93NUMPY\x01\x00", b"PK\x03\x04")):
        folder.mkdir(exist_ok=True)
        (folder / f"Add.a.7.{STARTED}.output.{index}.npy").write_bytes(content)
    save(folder / f"Add.a.7.{STARTED}.output.3.npy", X)
    np.save(folder / f"Add.a.7.{STARTED}.output.4.npy", np.array(["text"]))
    np.save(folder / f"Add.a.7.{STARTED}.output.5.npy", np.array([{}], object), allow_pickle=True)
    save(tmp_path / "outside.npy", X)
    (folder / f"Add.a.7.{STARTED}.output.6.npy").symlink_to(tmp_path / "outside.npy")
    save(folder / f"Add.a.7.{STARTED}.output.9999.npy", X)
    output = records(folder)["Tensorflow.a.0"]["output"]
    assert [each is not None for each in output] == [False] * 3 + [True] + [False] * 3
    said = capsys.readouterr().err
    assert "7 files are left out" in said
    assert "not a readable .npy file" in said


def test_a_file_that_claims_more_than_it_has_is_not_allocated(tmp_path: Path) -> None:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }"
    path = tmp_path / f"Add.a.7.{STARTED}.output.0.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    assert records(tmp_path)["Tensorflow.a.0"]["output"] == [None]


def test_what_is_not_decoded_needs_msaccucmp_and_says_how(tmp_path: Path) -> None:
    root = small(V0_1_11, is_raw=True).write(tmp_path / "precision_data")
    for each in (root / "temp/decode/dump_decode/debug_0").iterdir():
        each.unlink()
    with pytest.raises(
        DumpError, match=r"3 of its files are not decoded.*msaccucmp.py convert -d "
    ):
        as_our_dump(root)


def test_msaccucmp_below_cmd_root_path_decodes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = small(V0_1_11, is_raw=True, has_graph=False).write(tmp_path / "precision_data")
    for each in (root / "temp/decode/dump_decode/debug_0").iterdir():
        each.unlink()
    program = tmp_path / "ascend/tools/operator_cmp/compare/msaccucmp.py"
    program.parent.mkdir(parents=True)
    program.write_text(
        "import pathlib, sys\nimport numpy as np\n"
        "_, word, d, source, out, target = sys.argv\n"
        "assert (word, d, out) == ('convert', '-d', '-out')\n"
        "for each in pathlib.Path(source).iterdir():\n"
        "    np.save(f'{target}/{each.name}.output.0.npy', np.ones((2, 2), np.float32))\n"
    )
    monkeypatch.setenv("CMD_ROOT_PATH", str(tmp_path / "ascend"))
    with opened(root) as side:
        assert len(side.entries) == 3
        assert values(side, side.items(side.entries[0])[0]).tolist() == [[1.0, 1.0]] * 2
    assert not (as_our_dump(root) / "decoded").exists()
    program.write_text("import sys\nprint('no such chip', file=sys.stderr)\nsys.exit(3)\n")
    (root / "fusion").mkdir()
    (root / "fusion" / "fusion_result.json").write_text("{}")
    with pytest.raises(DumpError, match=r"msaccucmp.py failed with 3: no such chip"):
        as_our_dump(root)


def test_it_is_read_again_when_a_graph_beside_it_changes(tmp_path: Path) -> None:
    root = small(GUIDE).write(tmp_path / "precision_data")
    before = as_our_dump(root / "dump/cpu")
    assert as_our_dump(root / "dump/cpu") == before
    (root / "graph/cpu/ckpt.meta").unlink()
    assert as_our_dump(root / "dump/cpu") != before


def test_a_folder_of_graphs_alone_has_its_operators_without_values(tmp_path: Path) -> None:
    root = small(GUIDE).write(tmp_path / "precision_data")
    for name in ("decode", "cpu"):
        for each in (root / "dump" / name).iterdir():
            each.unlink()
    found = records(root)
    assert found["Tensorflow.net_fc_MatMul_Relu.0"]["operator"]["type"] == "MatMulV2"
    assert found["Tensorflow.net_fc_MatMul_Relu.0"]["output"] == []


def blocks_of_channels(values: Array, size: int) -> Array:
    """Return NHWC as NC1HWC0."""
    n, h, w, c = values.shape
    padded = np.zeros((n, h, w, -(-c // size) * size), values.dtype)
    padded[..., :c] = values
    return padded.reshape(n, h, w, -1, size).transpose(0, 3, 1, 2, 4)


def blocks_of_a_matrix(values: Array, size: int) -> Array:
    """Return (M, N) as FRACTAL_NZ."""
    m, n = values.shape
    padded = np.zeros((-(-m // size) * size, -(-n // size) * size), values.dtype)
    padded[:m, :n] = values
    return padded.reshape(-(-m // size), size, -(-n // size), size).transpose(2, 0, 1, 3)


def blocks_of_weights(values: Array, size: int) -> Array:
    """Return HWCN as FRACTAL_Z: (C1 H W, N1, N0, C0)."""
    h, w, c, n = values.shape
    padded = np.zeros((h, w, -(-c // size) * size, -(-n // 16) * 16), values.dtype)
    padded[:, :, :c, :n] = values
    blocks = padded.reshape(h, w, -1, size, padded.shape[3] // 16, 16)
    return blocks.transpose(2, 0, 1, 4, 5, 3).reshape(-1, padded.shape[3] // 16, 16, size)


@pytest.mark.parametrize("kind", ["NC1HWC0", "FRACTAL_NZ", "FRACTAL_Z"])
def test_values_in_a_layout_of_the_device_are_brought_into_that_of_the_model(
    tmp_path: Path, kind: str
) -> None:
    rng = np.random.default_rng(3)
    if kind == "NC1HWC0":
        wanted = rng.normal(size=(2, 5, 4, 20)).astype(np.float32)
        blocked = blocks_of_channels(wanted, 16)
    elif kind == "FRACTAL_Z":
        wanted = rng.normal(size=(3, 2, 20, 5)).astype(np.float32)
        blocked = blocks_of_weights(wanted, 16)
    else:
        wanted = rng.normal(size=(20, 33)).astype(np.float32)
        blocked = blocks_of_a_matrix(wanted, 16)
    layout = "HWCN" if kind == "FRACTAL_Z" else "NHWC"
    told = {"layout": kind, "origin_format": layout, "origin_shape": wanted.shape}
    operator = NpuOperator("Conv2D", "c", [], [blocked], output_tensors=[told], origins=["c:0"])
    root = Capture(GUIDE, [operator], {"c:0": wanted}).write(tmp_path / "precision_data")
    with opened(root) as side:
        (made,) = side.items(side.entries[0])
        assert made.shape == wanted.shape
        np.testing.assert_array_equal(values(side, made), wanted)


names = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8)
arrays = st.builds(
    lambda kind, shape, seed: np.random.default_rng(seed).integers(-9, 9, shape).astype(kind),
    st.sampled_from(["float32", "float16", "int32", "bool", "float64", "uint8"]),
    st.lists(st.integers(0, 4), max_size=4),
    st.integers(0, 99),
)
operators = st.builds(
    NpuOperator,
    type=names,
    name=st.lists(names, min_size=1, max_size=3).map("/".join),
    inputs=st.lists(arrays, max_size=3),
    outputs=st.lists(arrays, min_size=1, max_size=3),
    sources=st.lists(names.map(lambda each: f"{each}:0"), max_size=3),
    origins=st.lists(names.map(lambda each: f"{each}:1"), max_size=3),
    originals=st.lists(names, max_size=3),
    task=st.integers(0, 9),
    stream=st.none() | st.integers(0, 99),
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    layout=st.sampled_from([GUIDE, V0_1_11]),
    is_json=st.booleans(),
    is_raw=st.booleans(),
    made=st.lists(operators, min_size=1, max_size=4, unique_by=lambda each: in_files(each.name)),
    tensors=st.dictionaries(names.map(lambda each: f"{each}:0"), arrays, max_size=4),
)
def test_what_is_written_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    layout: str,
    is_json: bool,
    is_raw: bool,
    made: Sequence[NpuOperator],
    tensors: Mapping[str, Array],
) -> None:
    root = tmp_path_factory.mktemp("data") / "precision_data"
    Capture(layout, made, tensors, is_json=is_json, is_raw=is_raw).write(root)
    with opened(root) as side:
        assert [each.call for each in side.entries] == [
            f"Tensorflow.{in_files(each.name)}.0" for each in made
        ]
        for entry, wanted in zip(side.entries, made, strict=True):
            operator = side.record(entry)["operator"]
            assert (operator["type"], operator["name"]) == (wanted.type, wanted.name)
            origins = [each.rpartition(":")[0] for each in wanted.origins[: len(wanted.outputs)]]
            assert operator["origins"] == (
                [*dict.fromkeys([*origins, *wanted.originals])] or [wanted.name]
            )
            held = [values(side, each) for each in side.items(entry)]
            for one, two in zip(held, [*wanted.inputs, *wanted.outputs], strict=True):
                assert (one.dtype, one.tolist()) == (two.dtype, two.tolist())
    if tensors:
        found = records(root / TF_FOLDER[layout])
        assert list(found) == [f"Tensorflow.{each.partition(':')[0]}.0" for each in tensors]


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_file_that_was_changed_is_a_sentence_or_a_gap(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    flag = {"AI Core": {"task_id": 3, "stream_id": 0, "status": 32}}
    capture = small(
        data.draw(st.sampled_from([GUIDE, V0_1_11])), is_raw=True, is_json=data.draw(st.booleans())
    )
    capture.flags = [(flag, capture.operators[0])]
    capture.fusions = '{"graphId": "0", "graph_fusion": {"A": {"effect_times": "1"}}}'
    root = capture.write(tmp_path_factory.mktemp("data") / "precision_data")
    (root / "mapping.csv").write_text("a,b\n")
    files = sorted(each for each in root.rglob("*") if each.is_file())
    file = data.draw(st.sampled_from(files))
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(content)))
        how = data.draw(st.sampled_from(["cut", "byte", "insert"]))
        if how == "cut":
            del content[at:]
        elif how == "byte" and at < len(content):
            content[at] = data.draw(st.integers(0, 255))
        else:
            content[at:at] = data.draw(st.binary(max_size=9))
    file.write_bytes(content)
    for path in (root, root / TF_FOLDER[capture.layout]):
        with contextlib.suppress(DumpError):
            assert records(path)


def test_names_may_hold_anything_that_a_file_system_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["a\x1b[31m", "a b", "ä", "\udc80", '"', "\\", "Module", "0"]
    for name in names:
        save(tmp_path / "npu" / f"Add.{name}.7.{STARTED}.output.0.npy", X)
        (tmp_path / "npu" / f"Add.{name}.8.{STARTED}.output.0.npy").write_bytes(b"torn")
    with opened(tmp_path / "npu") as side:
        # Each ran twice, and the values of one run are torn.
        assert sorted(each.call for each in side.entries) == sorted(
            f"Tensorflow.{name}.{number}" for name in names for number in (0, 1)
        )
        assert sum(bool(side.items(each)[0].file) for each in side.entries) == len(names)
    assert "\x1b[31m" not in capsys.readouterr().err


def test_nothing_in_a_cache_is_taken_for_one(tmp_path: Path) -> None:
    os.makedirs(tmp_path / "npu" / "debug_0" / "dump")
    assert format_of(tmp_path) is None
