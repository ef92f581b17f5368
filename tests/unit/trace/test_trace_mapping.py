"""What a user's files say belongs together, belongs together."""

from dataclasses import replace
from pathlib import Path

import pytest

from ray_precheck.commands.compare.pairing import (
    Named,
    NameMapping,
    aligned,
    read_mapping,
    require_named,
)
from ray_precheck.errors import UsageError
from ray_precheck.trace.alignment.align import How
from ray_precheck.trace.alignment.calls import Call
from ray_precheck.trace.items import Item
from ray_precheck.trace.side import API, MODULE

pytestmark = pytest.mark.unit
CONV = """
- ms_api: Functional.conv2d
  pt_api: Torch.my_conv
  ms_args: [0, 1]
  pt_args: [1, 0]
  ms_outputs: [0]
  pt_outputs: [1]
"""


def call(name: str, kind: str = API) -> Call:
    type_name = name.rpartition(".")[0]
    return Call(name, kind, type_name, type_name.rpartition(".")[2])


def read(folder: Path, option: str, text: str) -> NameMapping:
    path = folder / "names.yaml"
    path.write_text(text, encoding="utf-8")
    files = {"-am": (path, None, None), "-cm": (None, path, None), "-dm": (None, None, path)}
    return read_mapping(*files[option])


def test_operators_are_paired_with_their_arguments(tmp_path: Path) -> None:
    mapping = read(tmp_path, "-am", CONV)
    target, golden = [call("Functional.conv2d.0")], [call("Torch.my_conv.0")]
    (match,) = aligned(target, golden, mapping, exact=True)
    assert (match.target, match.golden, match.how) == ((0,), (0,), How.MAPPED)
    partners = [
        mapping.partner("Functional.conv2d", "key", Item(path, path.split(".")[0], None))
        for path in ("input.0", "input.1", "input.2", "output.0", "parameters.x")
    ]
    # An argument that is not listed has no partner; of parameters the file says nothing.
    assert partners == ["input.1", "input.0", "", "output.1", None]
    assert mapping.partner("Torch.add", "key", Item("input.0", "input", None)) is None


def test_lists_of_arguments_say_nothing_of_gradients(tmp_path: Path) -> None:
    mapping = read(tmp_path, "-am", CONV)
    for part in ("input", "output"):
        item = Item(f"{part}.0", part, None)
        key = "Functional.conv2d.0.backward"
        assert mapping.partner("Functional.conv2d", key, item) is None


@pytest.mark.parametrize("text", ["fc2.Dense: fc2.Linear", "Dense: Linear"])
def test_modules_are_paired_by_their_whole_name_or_by_parts(tmp_path: Path, text: str) -> None:
    mapping = read(tmp_path, "-cm", text)
    target, golden = [call("Cell.fc2.Dense.0", MODULE)], [call("Module.fc2.Linear.0", MODULE)]
    (match,) = aligned(target, golden, mapping, exact=True)
    assert (match.target, match.golden, match.how) == ((0,), (0,), How.MAPPED)


def test_calls_whose_values_are_paired_belong_together(tmp_path: Path) -> None:
    text = "Mint.a.0.forward.input.0: Torch.z.1.forward.input.1"
    mapping = read(tmp_path, "-dm", text)
    target = [call("Mint.a.0"), call("Mint.b.0")]
    golden = [call("Torch.z.0"), call("Torch.z.1")]
    found = aligned(target, golden, mapping, exact=True)
    assert ((0,), (1,), How.MAPPED) in [match[:3] for match in found]
    places = [match.target for match in found] + [match.golden for match in found]
    assert sorted(place for each in places for place in each) == [0, 0, 1, 1]
    item = Item("input.0", "input", None)
    assert mapping.partner("Mint.a", "Mint.a.0.forward", item) == "Torch.z.1.forward.input.1"


@pytest.mark.parametrize(
    ("option", "text", "expected"),
    [
        ("-am", "a: b", "a list of pairs"),
        ("-am", "- {ms_api: a}", "ms_api and pt_api"),
        ("-am", "- {ms_api: a, pt_api: b, ms_args: [0], pt_args: [0, 1]}", "of one length"),
        ("-cm", "- a", "pairs of names"),
        ("-dm", "a: 3", "pairs of names"),
        ("-dm", "a: [", "no YAML"),
    ],
)
def test_a_file_of_another_form_is_one_sentence(
    tmp_path: Path, option: str, text: str, expected: str
) -> None:
    with pytest.raises(UsageError, match=expected) as error:
        read(tmp_path, option, text)
    assert "names.yaml" in str(error.value)
    assert option in str(error.value)


@pytest.mark.parametrize(
    ("option", "text", "nothing"),
    [
        ("-am", "- {ms_api: Mint.mul, pt_api: Torch.add}", "target"),
        ("-am", "- {ms_api: Mint.add, pt_api: Torch.mul}", "golden side"),
        ("-cm", "Dense: Linear", "target"),
        ("-cm", "Cell: Linear", "golden side"),
        ("-dm", "Mint.add.1.forward.input.0: Torch.add.0.forward.input.0", "target"),
        ("-dm", "Mint.add.0.forward.input.0: Torch.add.7.forward.input.0", "golden side"),
    ],
)
def test_a_file_of_which_a_side_has_no_name_is_refused(
    tmp_path: Path, option: str, text: str, nothing: str
) -> None:
    mapping = read(tmp_path, option, text)
    sides = (
        Named(frozenset(("Mint.add", "Cell.a.B")), ("Mint.add.0.forward",)),
        Named(frozenset(("Torch.add", "Module.a.B")), ("Torch.add.0.forward",)),
    )
    with pytest.raises(UsageError, match=f"names.yaml names nothing of the {nothing}"):
        require_named(mapping, [tmp_path / "names.yaml"] * 3, *sides)


def test_values_of_modules_pair_their_calls(tmp_path: Path) -> None:
    text = "Module.a.Norm.forward.0.output.0: Module.a.Norm.forward.1.output.0"
    mapping = read(tmp_path, "-dm", text)
    calls = [call("Module.a.Norm.0", MODULE), call("Module.a.Norm.1", MODULE)]
    found = aligned(calls, calls, mapping, exact=False)
    assert ((0,), (1,), How.MAPPED) in [(each.target, each.golden, each.how) for each in found]


def test_each_file_has_to_name_something(tmp_path: Path) -> None:
    good = read(tmp_path, "-am", "- {ms_api: Mint.add, pt_api: Torch.add}")
    sides = (
        Named(frozenset(("Mint.add",)), ("Mint.add.0.forward",)),
        Named(frozenset(("Torch.add",)), ("Torch.add.0.forward",)),
    )
    paths = [tmp_path / "am.yaml", None, tmp_path / "dm.yaml"]
    require_named(good, paths, *sides)
    values = read(tmp_path, "-dm", "X.0.f.input.0: Y").values
    with pytest.raises(UsageError, match=r"dm\.yaml names nothing"):
        require_named(replace(good, values=values), paths, *sides)
