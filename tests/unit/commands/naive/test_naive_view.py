"""The View of naive: calls whose kernels differ, with both errors, and the switch behind it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_precheck.cli import main
from ray_precheck.commands.naive.contrast import Contrast, OutputContrast
from ray_precheck.commands.naive.job import NAIVE_TABLES, contrast_row
from ray_precheck.commands.naive.report import view
from ray_precheck.running.views import found_run
from ray_precheck.schema.environment import Environment, environment_to_dict
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import TaskPayload
from ray_precheck.schema.view import HeatMap, ModuleTree, Tone, View, ViewState
from ray_precheck.store.settings import RunSettings, save_settings
from ray_precheck.store.tables import encode_row, header, run_files
from tests.unit.trace.overflow_records import forward, tensor, write_dump

pytestmark = pytest.mark.unit
PASS, ERROR, SKIP = Verdict.PASS, Verdict.ERROR, Verdict.SKIP
CONSTRUCT = {
    "Torch.mm.0.forward": "Module.net.Linear.forward.0",
    "Torch.add.0.forward": "Module.net.Linear.forward.0",
    "Module.net.Linear.forward.0": None,
}


def output(
    call: str, default: float, naive: float, verdict: Verdict, dtype: str = "float32"
) -> Any:
    name, shape = f"{call}.forward.output.0", "(4, 8)"
    return OutputContrast(name, dtype, shape, default, naive, default - naive, verdict, (1, 2))


def contrasts() -> dict[str, Contrast]:
    wrong = Contrast(
        ERROR,
        (output("Torch.mm.0", 950.0, 1.5, ERROR),),
        "default",
        ("onednn",),
        said=("the default kernels are wrong and the plain ones right: RMSE is too large",),
    )
    unlike = Contrast(
        ERROR,
        (output("Torch.put.0", 0.5, 0.5, PASS, "bfloat16"),),
        unlike="forward.output.0 [1]",
        said=("3 equal runs differ in bits",),
    )
    right = Contrast(PASS, (output("Torch.add.0", 3.0, 2.0, PASS),))
    return {"Torch.add.0": right, "Torch.mm.0": wrong, "Torch.put.0": unlike}


def run_of(folder: Path, found: dict[str, Contrast], *, completed: bool = True) -> Path:
    """Write the files of a run as its job writes them; return the table of calls."""
    dump = write_dump(
        folder / "dump",
        {f"{call}.forward": forward([tensor()], [tensor()]) for call in found},
        CONSTRUCT,
    )
    files = run_files(folder / NAIVE_TABLES.file("result", "20260101120000"), NAIVE_TABLES)
    rows = [contrast_row(TaskPayload(0, name, None, None), each) for name, each in found.items()]
    skipped = encode_row(["Torch.load.0", "SKIP", *[""] * 8, "it reads a file"])
    result = [header(NAIVE_TABLES.result), *(row.row for row in rows), skipped]
    files.result.write_bytes(b"".join(result))
    details = [header(NAIVE_TABLES.details), *(row.details for row in rows)]
    files.details.write_bytes(b"".join(details))
    there = environment_to_dict(Environment("pytorch", "cpu", devices=1, nodes=1, dump=str(dump)))
    sizes = files.result.stat().st_size, files.details.stat().st_size
    command = ("naive", str(dump))
    settings = RunSettings(
        {}, completed=sizes if completed else None, environment=there, command=command
    )
    save_settings(files.settings, settings)
    return files.result


def seen(folder: Path, **options: Any) -> View:
    return view([found_run(run_of(folder, contrasts(), **options))])


def test_a_call_that_differs_has_a_card_with_both_errors_and_the_switch(tmp_path: Path) -> None:
    found = seen(tmp_path)
    assert found.sentence == (
        "2 of 4 calls in error, 1 of which are not reproducible; the first is Torch.mm.0; the switch onednn"
        " makes the difference in 1 call."
    )
    assert (found.exit_code, found.state, found.tone) == (1, ViewState.FINISHED, Tone.ERROR)
    card, unlike = found.cards
    assert (card.name, card.row, card.times) == ("Torch.mm.0", "Torch.mm.0", 950.0)
    assert [(bar.name.partition(",")[0], bar.value, bar.limit) for bar in card.bars] == [
        ("default kernels", 950.0, 1.0),
        ("plain kernels", 1.5, 1.0),
        ("difference of both", 948.0, 1.0),
    ]
    facts = {fact.name: fact.value for fact in card.facts}
    assert facts == {
        "Wrong": "default",
        "Switch": "onednn",
        "Equal runs give the same bits": "yes",
        "Largest error at": "forward.output.0 [1, 2]",
    }
    assert card.module == "Module.net.Linear.forward.0"
    assert card.source.startswith("/home/me/train.py:7")
    assert [fact.name for fact in card.inputs] == ["input.0"]
    assert card.reproduce.endswith("dump.json -k Torch.mm.0")
    assert {fact.name: fact.value for fact in unlike.facts}["Equal runs give the same bits"] == "no"


def test_operator_types_and_dtypes_show_the_worst_error_and_what_passes_is_at_most_1(
    tmp_path: Path,
) -> None:
    found = seen(tmp_path)
    (heat,) = found.overview
    assert isinstance(heat, HeatMap)
    assert heat.rows == ("Torch.mm", "Torch.add", "Torch.put")
    assert heat.columns == ("bfloat16", "float32")
    np.testing.assert_array_equal(heat.values, [[np.nan, 950], [np.nan, 1], [0.5, np.nan]])
    assert heat.links[0, 1] == "Torch.mm.0"
    (tree,) = found.model
    assert isinstance(tree, ModuleTree)
    assert [(node.tone, node.calls, node.errors, node.link) for node in tree.nodes] == [
        (Tone.ERROR, 2, 1, "Torch.mm.0")
    ]


def test_counts_and_reasons_cover_every_call(tmp_path: Path) -> None:
    found = seen(tmp_path)
    assert [(count.name, count.number) for count in found.counts] == [
        ("pass", 1),
        ("error", 2),
        ("SKIP", 1),
    ]
    assert [(each.text, each.names) for each in found.reasons] == [
        ("it reads a file", ("Torch.load.0",))
    ]
    assert [table.title for table in found.tables] == ["Calls", "Outputs"]
    assert "Run the model with the switch off" in found.advice[0].sentence
    assert "bit for bit" in found.advice[1].sentence
    assert ("Device", "1 cpu") in [(fact.name, fact.value) for fact in found.facts]


def test_a_run_that_was_stopped_says_so_and_how_to_go_on(tmp_path: Path) -> None:
    found = seen(tmp_path, completed=False)
    assert (found.state, found.exit_code) == (ViewState.STOPPED, 3)
    assert found.sentence.startswith("Stopped before its end; so far: 2 of 4 calls")
    assert found.advice[0].commands[0].startswith("ray-precheck naive ")
    assert "-csv_path" in found.advice[0].commands[0]


def test_a_table_that_is_torn_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = run_of(tmp_path, contrasts())
    path.write_bytes(path.read_bytes()[:-30])
    path.with_name(path.name.replace("naive_", "naive_outputs_")).unlink()
    found = view([found_run(path)])
    assert [count.number for count in found.counts] == [1, 2, 0]
    assert found.overview == ()


def test_json_has_the_view_of_a_run_of_which_nothing_could_be_run(tmp_path: Path) -> None:
    record = {"input_args": [], "input_kwargs": {}, "output": []}
    dump = write_dump(tmp_path / "one", {"Torch.load.0.forward": record})
    words = ["naive", str(dump), "-o", str(tmp_path / "out"), "--json", str(tmp_path / "n.json")]
    assert main(words) == 4
    (one,) = json.loads((tmp_path / "n.json").read_text())["views"]
    assert (one["command"], one["exit_code"], one["tone"]) == ("naive", 4, "skip")
    assert one["sentence"] == "Nothing could be run of 1 call."
    assert (one["facts"][0]["name"], one["facts"][0]["value"][:5]) == ("Device", "1 cpu")
