"""Which calls a run is about, and what is said where nothing fits."""

from pathlib import Path
from typing import Any

import pytest

from ray_precheck.accuracy.standards.msprobe import MSPROBE
from ray_precheck.accuracy.standards.user_file import parse_standard
from ray_precheck.dump.parse import DumpCall
from ray_precheck.errors import UsageError
from ray_precheck.replay.config import RunConfig
from ray_precheck.replay.selection import Demands, nearest_names, selection_of

pytestmark = pytest.mark.unit

CALLS = [
    DumpCall(name)
    for name in (
        "Functional.conv2d.0",
        "Functional.conv2d.1",
        "Torch.linalg.inv.0",
        "Tensor.inv.0",
        "Module.conv.Conv2d.forward.0",
        "Functional.relu.0",
    )
]


def chosen(**settings: Any) -> list[str]:
    """The names that a run with these settings is about."""
    selection = selection_of(RunConfig(Path("d.json"), **settings))
    return [call.name for call in selection.select(CALLS)]


def test_every_call_is_selected_where_nothing_is_asked_for() -> None:
    assert chosen() == [call.name for call in CALLS]


def test_names_of_the_lists_are_without_prefix_and_number() -> None:
    assert chosen(white_list=("conv2d",)) == ["Functional.conv2d.0", "Functional.conv2d.1"]
    assert chosen(white_list=("linalg.inv",)) == ["Torch.linalg.inv.0"]
    assert chosen(white_list=("inv", "relu")) == ["Tensor.inv.0", "Functional.relu.0"]
    assert chosen(white_list=("Functional.relu",)) == ["Functional.relu.0"]
    assert chosen(black_list=("conv2d", "inv")) == [
        "Torch.linalg.inv.0",
        "Module.conv.Conv2d.forward.0",
        "Functional.relu.0",
    ]


def test_the_black_list_outdoes_the_white_one() -> None:
    assert chosen(white_list=("conv2d", "relu"), black_list=("conv2d",)) == ["Functional.relu.0"]


def test_one_pattern_of_several_suffices_and_the_lists_count_too() -> None:
    assert chosen(keywords=("relu", "conv2d.1")) == ["Functional.conv2d.1", "Functional.relu.0"]
    assert chosen(keywords=("inv",), black_list=("inv",)) == ["Torch.linalg.inv.0"]


def test_single_calls_are_selected_by_their_whole_names() -> None:
    assert chosen(calls=("Functional.conv2d.1", "Functional.relu")) == ["Functional.conv2d.1"]
    assert text(calls=("b.1", "a.0")) == "calls a.0, b.1"


def text(**settings: Any) -> str:
    """What the settings of a run say of its selection."""
    return selection_of(RunConfig(Path("d.json"), **settings)).text


def test_the_settings_of_a_run_tell_selections_apart() -> None:
    assert text() == "every call"
    assert text(white_list=("b", "a")) == text(white_list=("a", "b", "a")) == "white_list a, b"
    assert text(keywords=("x",), black_list=("a",)) == "-k 'x'; black_list a"
    assert (
        len({text(), text(keywords=("x",)), text(white_list=("x",)), text(black_list=("x",))}) == 4
    )


def required(standard: str = "", **settings: Any) -> list[str]:
    """The warnings of a run over all calls; raises as the run does."""
    rules = parse_standard(standard.encode(), "s.yaml") if standard else MSPROBE
    demands = Demands(selection_of(RunConfig(Path("d.json"), **settings)), rules)
    demands.show(CALLS[:3])
    demands.show(CALLS[3:])
    return demands.require("d.json")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"keywords": ("conv2d", "rleu")},
            "-k 'rleu' fits no call of d.json; the nearest names are Functional.relu",
        ),
        (
            {"keywords": ("conv3d and relu",)},
            "-k 'conv3d and relu' fits no call of d.json; the nearest names are Functional.conv2d",
        ),
        (
            {"keywords": ("conv2d and relu",)},
            "-k 'conv2d and relu' fits no call of d.json; each of its words fits some call, but none"
            " fits the whole expression",
        ),
        (
            {"white_list": ("conv3d", "xyz")},
            "white_list (conv3d, xyz) names no API of d.json; the nearest names are"
            " Functional.conv2d",
        ),
        (
            {"standard": "rules:\n  - {api: [conv1d], standard: ulp}\n"},
            "--standard: the rule for api conv1d fits no API of d.json; the nearest names are"
            " Functional.conv2d",
        ),
    ],
)
def test_what_fits_nothing_is_an_error_with_the_nearest_names(
    settings: dict[str, Any], expected: str
) -> None:
    with pytest.raises(UsageError) as wrong:
        required(**settings)
    assert str(wrong.value).startswith(expected)


def test_a_word_like_no_name_is_answered_with_some_names_of_the_dump() -> None:
    with pytest.raises(UsageError, match=r"fits no call of d.json; it has Functional.conv2d, "):
        required(keywords=("qqqqqqqq",))


@pytest.mark.parametrize(("count", "more"), [(5, ""), (6, ", ...")])
def test_five_names_of_the_dump_are_told(count: int, more: str) -> None:
    demands = Demands(selection_of(RunConfig(Path("d.json"), keywords=("qqqqqqqq",))), MSPROBE)
    names = [f"Torch.add{number}" for number in range(count)]
    demands.show([DumpCall(f"{name}.0") for name in names])
    with pytest.raises(UsageError) as wrong:
        demands.require("d.json")
    assert str(wrong.value).endswith(f"it has {', '.join(names[:5])}{more}")


def test_what_fits_a_call_of_one_of_several_dumps_is_fine() -> None:
    rule = "rules:\n  - {api: [conv2d, nothing], standard: ulp}\n  - {api: 're*', standard: ulp}\n"
    assert required(rule, keywords=("conv2d", "relu")) == []


def test_a_name_of_a_list_that_fits_nothing_beside_others_is_a_warning() -> None:
    first, second = required(white_list=("conv2d", "conv3d"), black_list=("rellu",))
    assert first.startswith("white_list of 'conv3d' fits no API of d.json; the nearest names are")
    assert second.startswith("black_list of 'rellu' fits no API of d.json; the nearest names are")


def test_nearest_names_are_five_at_most_and_whole_names() -> None:
    kinds = [f"Torch.conv{number}" for number in range(9)]
    assert len(nearest_names(["conv"], kinds)) == 5
    assert nearest_names(["INV"], ["Torch.linalg.inv"]) == ["Torch.linalg.inv"]
    assert nearest_names(["inv"], []) == []
