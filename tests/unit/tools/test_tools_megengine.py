"""MegEngine's tools under their old names: the same text, the same functions to import."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ray_precheck.errors import DumpError
from ray_precheck.tools import accuracy_shake_var_tree as tree
from ray_precheck.tools import compare_binary_iodump as compare
from ray_precheck.tools import load_and_run
from ray_precheck.tools.accuracy_shake_var_tree import get_dependence, parse, varNode
from ray_precheck.tools.compare_binary_iodump import check, load_tensor_binary

pytestmark = pytest.mark.unit
DATA = Path(__file__).parents[2] / "data" / "megengine"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder in which MegEngine's tools ran: their texts have the paths that they were given."""
    monkeypatch.chdir(DATA)


# --- compare_binary_iodump -------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "words"), [("naive", ["-e", "1e-8"]), ("faulty", [])])
def test_the_text_is_megengines(
    here: None, name: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare.main(["default", name, *words]) == 0
    assert capsys.readouterr().out == (DATA / f"{name}.diff").read_text()


def test_within_the_limit_nothing_is_printed(
    here: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare.main(["default", "naive"]) == 0
    assert compare.main(["default/000009", "default/000009", "-e", "0"]) == 0
    assert capsys.readouterr().out == ""


def test_a_larger_limit_leaves_fewer_variables(
    here: None, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = []
    for limit in ("1e-8", "1e-7", "1e-4"):
        compare.main(["default", "naive", "-e", limit])
        counts.append(capsys.readouterr().out.count(" not equal: "))
    assert counts[0] == 11
    assert counts[0] > counts[1] >= counts[2]


def test_it_stops_at_the_first_variable_with_s(
    here: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare.main(["default", "faulty", "-s"]) == 1
    assert capsys.readouterr().out.count(" not equal: ") == 1


def test_a_variable_is_loaded_with_its_title() -> None:
    path = DATA / "default" / "000009"
    values, title = load_tensor_binary(str(path))
    assert (values.shape, values.dtype) == ((1, 4, 8, 8), np.float32)
    assert title.startswith("var={id:9, layout:{1(256),4(64),8(8),8(1) Float32}")
    with path.open("rb") as file:
        np.testing.assert_array_equal(load_tensor_binary(file)[0], values)
    with pytest.raises(DumpError, match="is no file of a variable"):
        load_tensor_binary(DATA / "default.txt")


def test_check_is_silent_within_the_limit_and_raises_beyond() -> None:
    one = np.array([[1.0, 1000.0]])
    check(one, one + np.array([[0, 0.9]]), "x", 1e-3)
    with pytest.raises(
        AssertionError, match=r"^x not equal: shape=\(1, 2\) nonequal_idx=\(0, 1\) v0=1000\.0"
    ):
        check(one, one + np.array([[0, 1.1]]), "x", 1e-3)
    with pytest.raises(AssertionError, match=r"^x not finite: sum=nan vs sum=1001\.0"):
        check([[np.nan, 1000.0]], one, "x", 1e-3)
    with pytest.raises(AssertionError, match=r"^x shape mismatch: \(1, 2\) vs \(2,\)"):
        check(one, one[0], "x", 1e-3)


def test_what_cannot_be_compared_is_said_and_the_rest_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "faulty"
    shutil.copytree(DATA / "faulty", other)
    (other / "000001").unlink()
    (other / "000009").write_bytes(b"\x01")
    assert compare.main([str(DATA / "default"), str(other)]) == 0
    told = capsys.readouterr()
    assert told.out.count(" not equal: ") == 7
    assert f"warning: {other} lacks 000001 (1 files)" in told.err
    assert f"warning: {other / '000009'} is no file of a variable" in told.err
    assert compare.main([str(DATA / "default"), str(DATA / "default.txt")]) == 2
    assert "default.txt is no folder" in capsys.readouterr().err


# --- accuracy_shake_var_tree -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["naive", "faulty"])
def test_the_roots_are_printed_as_megengine_does(
    here: None, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tree.main([f"{name}.diff"]) == 0
    assert capsys.readouterr().out == (DATA / f"{name}.roots").read_text()


def test_nodes_are_found_by_either_spelling_with_what_is_up_and_down() -> None:
    roots = parse(DATA / "faulty.diff")
    assert [*roots] == ["id:33"]
    node = varNode.get_varNode("id::33")
    assert node is roots["id:33"] is varNode.get_varNode("id:33")
    assert [each.id for each in node.get_dependence_list()] == ["id:31"]
    assert [str(each) for each in node.get_reference_list()] == ["id:36"]
    assert varNode.get_varNode("id:31").get_reference_list() == [node]
    assert "pooling(ADD)[32]{PoolingForward}" in node.src_info
    with pytest.raises(KeyError):
        varNode.get_varNode("id:4711")


def test_older_texts_with_two_colons_and_any_order_are_read(tmp_path: Path) -> None:
    """MegEngine's own tool ends with a TypeError where a reader stands before what it reads."""
    blocks = [
        "a/5: \nvar={id::5, a} owner_opr_inputs={id::3, b}\nvar={id::5, a}\n not equal: shape=(1,)\n",
        "a/3: \nvar={id::3, a} owner_opr_inputs=0={id::1, b} 1={id::2, b}\nvar={id::3, a}\n not equal: x\n",
    ]
    (tmp_path / "diff.txt").write_text("".join(blocks))
    assert [*parse(tmp_path / "diff.txt")] == ["id::3"]
    assert [each.id for each in varNode.get_varNode("id:3").get_dependence_list()] == [
        "id::1",
        "id::2",
    ]
    assert [each.id for each in varNode.get_varNode("id:3").get_reference_list()] == ["id::5"]


def test_nan_other_shapes_and_weights_can_be_roots(tmp_path: Path) -> None:
    text = (
        "a/3: \nvar={id:3, a} owner_opr_inputs={id:1, b}\nvar={id:3, a}\n not finite: sum=nan vs sum=1\n"
        "a/5: \nvar={id:5, a} owner_opr_inputs={id:3, b}\nvar={id:5, a}\n not equal: x\n"
        "a/7: \nvar={id:7, a} owner_opr_inputs=\nvar={id:7, a}\n shape mismatch: (1,) vs (2,)\n"
    )
    (tmp_path / "diff.txt").write_text(text)
    assert [*parse(tmp_path / "diff.txt")] == ["id:3", "id:7"]


def test_a_node_is_made_of_a_title() -> None:
    parse(DATA / "faulty.diff")
    get_dependence("var={id:90, x} owner_opr_inputs=0={id:33, y} 1={id:91, z}", "told")
    assert [each.id for each in varNode.get_varNode("id:90").get_dependence_list()] == [
        "id:33",
        "id:91",
    ]
    assert varNode.get_varNode("id:91").vitrual


def test_a_text_that_is_not_there_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert tree.main(["/nowhere/diff.txt"]) == 2
    assert "cannot read /nowhere/diff.txt" in capsys.readouterr().err


# --- load_and_run ----------------------------------------------------------------------------------------


class FakeNetwork:
    """As `megenginelite.LiteNetwork`, with one input and one output; `calls` are those of all networks."""

    calls: list[tuple[Any, ...]]

    def __init__(self, config: Any) -> None:
        self.calls.append(("network", config.device_type))
        self.tensor = SimpleNamespace(
            layout=SimpleNamespace(dtype=np.float32),
            set_data_by_copy=lambda data: self.calls.append(("data", data.dtype.name, data.shape)),
            to_numpy=lambda: np.array([1.0, 3.0], np.float32),
        )

    def __getattr__(self, name: str) -> Any:
        return lambda *words: self.calls.append((name, *words))

    def get_all_input_name(self) -> list[str]:
        return ["data"]

    def get_all_output_name(self) -> list[str]:
        return ["prob"]

    def get_io_tensor(self, name: str) -> Any:
        return self.tensor


@pytest.fixture
def lite(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    FakeNetwork.calls = []
    module = ModuleType("megenginelite")
    module.LiteNetwork = FakeNetwork  # type: ignore[attr-defined]
    module.LiteConfig = SimpleNamespace  # type: ignore[attr-defined]
    module.LiteDeviceType = SimpleNamespace(LITE_CPU=0, LITE_CUDA=1)  # type: ignore[attr-defined]
    module.LiteAlgoSelectStrategy = SimpleNamespace(  # type: ignore[attr-defined]
        LITE_ALGO_HEURISTIC=1, LITE_ALGO_PROFILE=2, LITE_ALGO_REPRODUCIBLE=4
    )
    monkeypatch.setitem(sys.modules, "megenginelite", module)
    return FakeNetwork.calls


def test_a_network_gets_its_dump_and_its_policy_before_it_runs(
    lite: list[tuple[Any, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, dumped = tmp_path / "net.mge", tmp_path / "made" / "dump"
    model.write_bytes(b"model")
    np.save(tmp_path / "x.npy", np.zeros((1, 3)))
    words = [str(model), "--input", f"data:{tmp_path / 'x.npy'}", "--reproducible", "--iter", "2"]
    assert load_and_run.main([*words, "--bin-io-dump", str(dumped)]) == 0
    assert capsys.readouterr().out == "output prob: shape [2], min 1, max 3, mean 2\n"
    assert lite == [
        ("network", 0),
        ("load", str(model)),
        ("set_network_algo_policy", 5),
        ("io_bin_dump", str(dumped)),
        ("data", "float32", (1, 3)),
        *[("forward",), ("wait",)] * 2,
    ]
    assert dumped.is_dir()


def test_both_dumps_are_made_each_by_a_run(lite: list[tuple[Any, ...]], tmp_path: Path) -> None:
    (tmp_path / "net.mge").write_bytes(b"model")
    words = ["--io-dump", str(tmp_path / "a.txt"), "--bin-io-dump", str(tmp_path / "a")]
    assert load_and_run.main([str(tmp_path / "net.mge"), "--input", "[[1, 2]]", *words]) == 0
    names = [call[0] for call in lite]
    assert [each for each in names if "dump" in each] == ["io_txt_dump", "io_bin_dump"]
    assert names.count("forward") == 2


def test_pictures_are_read(lite: list[tuple[Any, ...]], tmp_path: Path) -> None:
    (tmp_path / "net.mge").write_bytes(b"model")
    (tmp_path / "x.ppm").write_bytes(b"P6\n# a comment\n2 1\n255\n" + bytes(6))
    assert (
        load_and_run.main([str(tmp_path / "net.mge"), "--input", f"data:{tmp_path / 'x.ppm'}"]) == 0
    )
    assert ("data", "float32", (1, 3, 1, 2)) in lite


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the inputs of the model are data, and 'data' has no data"),
        (["--input", "other:[1]"], "'other' is none of them"),
        (["--input", "data:nowhere.npy"], "--input data:nowhere.npy: No such file"),
        (["--input", "data:what"], "--input data:what is neither a file of values nor JSON"),
    ],
)
def test_wrong_inputs_are_a_sentence(
    lite: list[tuple[Any, ...]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    (tmp_path / "net.mge").write_bytes(b"model")
    assert load_and_run.main([str(tmp_path / "net.mge"), *words]) == 2
    assert said in capsys.readouterr().err


def test_without_megengine_the_sentence_has_the_pip_line() -> None:
    blocked = "import sys; sys.modules['megenginelite'] = None;"
    blocked += " from ray_precheck.tools.load_and_run import main;"
    done = subprocess.run(
        [sys.executable, "-c", f"{blocked} sys.exit(main(['net.mge']))"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "pip install 'megengine>=1.13' 'numpy<2', with Python 3.8 to 3.10" in done.stderr
    assert "Traceback" not in done.stderr
