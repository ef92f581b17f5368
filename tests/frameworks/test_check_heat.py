"""Where outputs are wrong, from the kernel to the view: every standard, every way of running."""

from pathlib import Path

import numpy as np
import pytest
import torch
from records import DATA, altered, call, replace_kernel, statistics_checker, tensor

from ray_precheck.accuracy.standards.user_file import load_standard
from ray_precheck.cli import IN_ERROR, main
from ray_precheck.commands.precheck.report import view
from ray_precheck.replay.job import done_of
from ray_precheck.running.views import found_run
from ray_precheck.schema.result import Verdict
from ray_precheck.store.heat import Heat, heat_file, read_heat
from ray_precheck.store.journal import Journal
from ray_precheck.store.results import read_columns
from ray_precheck.store.resume import start_run
from ray_precheck.store.settings import RunSettings

pytestmark = pytest.mark.frameworks

LINEAR = call("Functional.linear", tensor(32, 64), tensor(48, 64))
NAME = "Functional.linear.0.forward.output.0"


def one_wrong(out: torch.Tensor) -> torch.Tensor:
    """Make one row of an output wrong, whose columns are the last 3 of 48."""
    out = out.clone()
    out[20, 45:] += 3.0
    return out


@pytest.mark.parametrize(
    ("standard", "unit"),
    [
        ("msprobe", "times the limit (|error| 0.0001)"),
        ("auto", "times the limit (|error| "),
        ("ulp", "times the limit (units in the last place 32)"),
        ("thousandth", "times the limit (relative error 0.001)"),
        ("absolute", "times the limit (relative error "),
        ("benchmark", "times the limit (relative error "),
        ("binary", "relative error"),
    ],
)
def test_the_block_of_the_wrong_elements_is_beyond_the_limit_of_every_standard(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, standard: str, unit: str
) -> None:
    rule = tmp_path / "rule.yaml"
    # So many elements that every standard finds them.
    rule.write_text(f"standard: {standard}\n{STRICTER.get(standard, '')}")
    checker = statistics_checker("pytorch", standard=load_standard(str(rule)))
    replace_kernel(monkeypatch, checker.device(), altered(one_wrong))
    files = start_run(tmp_path / "run", "1", RunSettings({"standard": standard}))
    result = checker.check(LINEAR)
    assert result.forward is Verdict.ERROR
    journal = Journal.open(files.result, files.details)
    journal.append([done_of(result)])
    journal.complete([LINEAR.name])
    journal.close()
    path = heat_file(files.result)
    assert path is not None
    heat = read_heat(path)[NAME]
    assert heat.unit.startswith(unit)
    # Row 20 of 32 is in block 10 of 16, columns 45 to 47 of 48 in block 15.
    assert np.unravel_index(int(np.argmax(heat.blocks)), heat.blocks.shape) == (10, 15)
    if standard != "binary":
        assert heat.above == 1.0
        beyond = int((heat.blocks > 1.0).sum())
        # Sums that cancel are many units off, and have a large relative error, in honest results, too.
        assert beyond > 1 if standard in ("ulp", "absolute") else beyond == 1
    [card] = view([found_run(files.result)]).cards
    assert card.blocks is not None
    assert card.histogram is not None


STRICTER = {
    "ulp": "limits: {ulp: {share: 0.0001, mean: 0.001}}\n",
    "thousandth": "limits: {thousandth: {share: 0.9999}}\n",
}


def heats_of(out: Path) -> tuple[bytes, dict[str, Heat]]:
    [path] = out.glob("heat_*.npz")
    return path.read_bytes(), dict(read_heat(path))


@pytest.mark.parametrize("options", [["-d", "0", "1"], ["--bench-workers", "1"]])
def test_every_way_of_running_gives_the_same_arrays(tmp_path: Path, options: list[str]) -> None:
    dump = DATA / "torch_llm_bf16" / "dump.json"
    line = ["run_ut", "-api_info", str(dump), "-k", "addcdiv_ or linear", "--device-type", "cpu"]
    assert main([*line, "-d", "0", "-o", str(tmp_path / "one")]) == IN_ERROR
    assert main([*line, *options, "-o", str(tmp_path / "other")]) == IN_ERROR
    data, heats = heats_of(tmp_path / "one")
    assert heats_of(tmp_path / "other")[0] == data
    [details] = (tmp_path / "one").glob("accuracy_checking_details_*.csv")
    rows = read_columns(details, ("API Name", "Status"))
    assert list(heats) == [name for name, status in rows if status == "error"]
    assert len(heats) >= 4
