"""Bad input to the command: what cannot be read at all, wrong options, and records that are skipped."""

from pathlib import Path

import pytest
from dumps import additions, tensor, write_dump
from test_cluster_command import precheck, rows

from ray_precheck.cli import main

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "a JSON object is expected"),
        ("not json at all", "a JSON object is expected"),
        ("[1, 2]", "a JSON object is expected"),
        ('{"task": "statistics", "data": {"Tensor.add.0.forward": {"input_args": [', "is cut off"),
        ('{"task": "statistics"}', "has no 'data' (found: task)"),
        ('{"task": "free", "data": {"a.b.0.forward": {}}}', "task 'free'"),
        ('{"framework": "jax", "data": {"a.b.0.forward": {}}}', "framework 'jax'"),
        ('{"data": {"a.b.0.forward": {}}}', "does not name its framework"),
        ('{"data": [1]}', "'data' of"),
    ],
)
def test_an_unusable_dump_is_one_sentence_and_exit_code_2(
    text: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = tmp_path / "dump.json"
    dump.write_text(text)
    assert main(["run_ut", "-api_info", str(dump), "-o", str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_wrong_options_are_one_sentence_and_write_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = write_dump(tmp_path / "dump.json", additions(1))
    file = tmp_path / "file"
    file.write_text("mine")
    cases: list[tuple[list[object], str]] = [
        (["-api_info", tmp_path / "none.json"], "No such file"),
        (["-api_info", dump, "-o", file], "is a file"),
        (["-api_info", dump, "-d", "1", "1"], "more than once"),
        (["-api_info", dump, "-d", "-1"], "-1"),
        (["-api_info", dump, "-csv_path", file], "is no result CSV"),
        (["-api_info", dump, "--device-type", "npu", "-d", "2"], "has no npu"),
        (["-api_info", dump, "-f", "mindspore"], "is a dump of pytorch"),
        (["-api_info", dump, "--tested", "dump"], "needs captured tensors"),
    ]
    for options, sentence in cases:
        where = [] if "-o" in options else ["-o", tmp_path]
        assert main(["run_ut", *map(str, [*options, *where])]) == 2, options
        said = capsys.readouterr().err
        assert sentence in said
        assert said.count("\n") == 1
        assert "Traceback" not in said
    assert file.read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"dump.json", "file"}


def test_broken_and_foreign_records_are_skip_rows_and_the_run_goes_on(tmp_path: Path) -> None:
    broken = {
        "Torch.sin.0.forward": [1, 2],
        "Torch.sin.1.forward": {"input_args": [tensor("float32", [2, -3], 0, 1)]},
        "Torch.sin.2.backward": {"input": [], "output": []},
        "Module.a.Linear.forward.0": {},
        "Module.a.parameters_grad": {},
        "short.forward": {},
        "Torch.load.0.forward": {"input_args": [{"type": "str", "value": "/etc/passwd"}]},
        "Torch.dropout.0.forward": {"input_args": [tensor("float32", [2, 3], 0, 1)]},
        "Distributed.all_reduce.0.forward": {"input_args": [tensor("float32", [2, 3], 0, 1)]},
    }
    dump = write_dump(tmp_path / "dump.json", additions(2), broken, additions(2, first=2))
    done = precheck("run_ut", "-api_info", dump, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    found = rows(tmp_path / "out")
    skips = {name for name, row in found.items() if row["Forward Test Success"] == "SKIP"}
    assert len(found) == 11
    assert skips == {
        key.removesuffix(".forward").removesuffix(".backward")
        for key in broken
        if not key.startswith("Module.")
    } - {"short"} | {"short.forward"}
    assert all(found[name]["Message"] for name in skips)
