"""The yardsticks of locate: of faults on a small model, and of mistakes in scripts a short form."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ray_precheck.capture.recording.recorder import CallName  # noqa: E402
from scripts.locate_faults.cases import (  # noqa: E402
    COLLECTIVE,
    DATA,
    EPSILON,
    FORWARD,
    GRADIENT,
    HIDDEN,
    HONEST,
    MASK,
    OWN,
    UPDATE,
    WEIGHT,
    FaultCase,
    Judged,
    read_cases,
    write_cases,
)
from scripts.locate_faults.looking.replaying import Replay  # noqa: E402
from scripts.locate_faults.looking.tables import (  # noqa: E402
    REPLAY,
    is_alone,
    is_first,
    misses,
    table_of_faults,
    table_of_honest,
)
from scripts.locate_faults.mistakes import MISTAKES, TENSORS, expected_lines, searched  # noqa: E402
from scripts.locate_faults.planted import (  # noqa: E402
    FAULTS,
    Size,
    size_of,
)
from scripts.locate_faults.planting.collective import collective_cases  # noqa: E402
from scripts.locate_faults.planting.making import maker_of  # noqa: E402
from scripts.locate_faults.planting.models import Batch, TrainedModel  # noqa: E402
from scripts.locate_faults.planting.plan import Counts  # noqa: E402
from scripts.locate_faults.planting.runs import MadeStep, summed_otherwise  # noqa: E402
from scripts.locate_faults.planting.watching import is_random  # noqa: E402
from scripts.locate_faults.twins import SKETCHES, STATISTICS, twin_of  # noqa: E402

pytestmark = pytest.mark.frameworks

COUNTS = Counts(seeds=1, forward=5, gradient=2, update=1, hidden=2)


class Small(torch.nn.Module):
    """Attention by matmul and softmax between two layers, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(16, 24)
        self.norm = torch.nn.LayerNorm(24)
        self.drop = torch.nn.Dropout(0.1)
        self.last = torch.nn.Linear(24, 4)

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        h = self.norm(torch.nn.functional.gelu(self.first(x)))
        weights = torch.softmax(torch.matmul(h, h.transpose(-1, -2)) * 0.2, dim=-1)
        return self.last(self.drop(torch.matmul(weights, h)) + h)


def small() -> TrainedModel:
    torch.manual_seed(0)
    module = Small()

    def batch(seed: int) -> Batch:
        return (torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(seed)),)

    return TrainedModel(module, batch, lambda given: module(given[0]).square().mean())


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> list[Judged]:
    folder = tmp_path_factory.mktemp("yard")
    cases = list(maker_of("small", torch.float32, small(), folder, COUNTS).cases())
    write_cases(folder, cases)
    assert read_cases(folder) == cases
    return cases


def of(judged: list[Judged], *families: str) -> list[Judged]:
    return [each for each in judged if each.case.family in families]


def record_of(dump: str, key: str) -> dict:
    return json.loads(Path(dump).read_bytes())["data"][key]


def test_there_are_as_many_faults_as_were_asked_for(judged: list[Judged]) -> None:
    found = {family: len(of(judged, family)) for family in (FORWARD, GRADIENT, UPDATE, HIDDEN)}
    assert found == {FORWARD: 5, GRADIENT: 2, UPDATE: 1, HIDDEN: 2}
    assert {each.case.family for each in of(judged, WEIGHT, MASK, DATA, EPSILON)} == {
        WEIGHT,
        MASK,
        DATA,
        EPSILON,
    }


def test_the_record_of_a_victim_holds_the_fault_and_those_before_it_do_not(
    judged: list[Judged],
) -> None:
    honest = of(judged, HONEST)[0].case.target
    for each in of(judged, *OWN):
        (culprit,) = each.case.culprits
        faulty, right = (
            json.loads(Path(path).read_bytes())["data"] for path in (each.case.target, honest)
        )
        differing = [key for key in right if _statistics(faulty[key]) != _statistics(right[key])]
        assert differing[0] == culprit, each.case.title


def _statistics(record: dict) -> str:
    return json.dumps([record.get("output")])


def test_replay_accuses_the_victim_alone_and_no_honest_run(judged: list[Judged]) -> None:
    faults = [each for each in of(judged, *OWN) if each.case.counts]
    assert len(faults) >= 6
    for each in faults:
        assert is_alone(each.case, each.ways[REPLAY]), each
    assert not any(each.ways.get(REPLAY) for each in of(judged, HONEST))


def test_honest_errors_are_those_of_rounding(judged: list[Judged]) -> None:
    for each in of(judged, FORWARD, GRADIENT):
        assert each.case.honest.largest < 1e-5, each.case.title


def test_a_hidden_call_has_no_record_and_its_neighbours_have(judged: list[Judged]) -> None:
    for each in of(judged, HIDDEN):
        assert each.case.culprits
        for key in (*each.case.culprits, *each.case.producers):
            assert record_of(each.case.target, key)
            assert record_of(each.case.golden, key)
        assert each.case.moved.moves_more_than(each.case.honest)
        assert not each.ways[REPLAY]


def test_twins_have_no_tensors_and_the_same_statistics(
    judged: list[Judged], tmp_path: Path
) -> None:
    dump = Path(of(judged, HONEST)[0].case.target)
    key = next(iter(json.loads(dump.read_bytes())["data"]))
    before = record_of(str(dump), key)["output"][0]
    assert {"data_name", "sketch"} <= before.keys()
    sketches = record_of(str(twin_of(dump, SKETCHES, tmp_path / "a")), key)["output"][0]
    statistics = record_of(str(twin_of(dump, STATISTICS, tmp_path / "b")), key)["output"][0]
    assert before.keys() - sketches.keys() == {"data_name"}
    assert before["Norm"] == statistics["Norm"]
    assert "sketch" not in statistics


def test_two_ranks_have_a_wrong_collective_on_one_of_them(tmp_path: Path) -> None:
    cases = [each.case for each in collective_cases(tmp_path / "ranks", "float32")]
    assert [case.family for case in cases] == [HONEST, COLLECTIVE, COLLECTIVE, COLLECTIVE]
    case = cases[1]
    outputs = [
        record_of(str(next(Path(case.target).glob(f"rank{rank}/dump.json"))), case.culprits[0])
        for rank in (0, 1)
    ]
    assert outputs[0]["output"][0]["Norm"] != outputs[1]["output"][0]["Norm"]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_changes_values_and_keeps_shape_and_dtype(name: str) -> None:
    values = torch.randn(3, 8, 4, generator=torch.Generator().manual_seed(0))
    wrong = FAULTS[name](values)
    assert (wrong.shape, wrong.dtype) == (values.shape, values.dtype)
    assert size_of(wrong, values).largest > 0


def test_a_size_is_the_rms_and_the_largest_and_infinite_for_new_nan() -> None:
    nan = float("nan")
    right = torch.tensor([1.0, 2.0, nan, 4.0])
    assert size_of(torch.tensor([1.0, 5.0, nan, 8.0]), right) == Size(2.5, 4.0)
    assert size_of(torch.tensor([1.0, nan, nan, 4.0]), right) == Size(math.inf, math.inf)
    assert Size(5.0, 1.0).moves_more_than(Size(1.0, 1.0))
    assert not Size(4.0, 4.0).moves_more_than(Size(1.0, 1.0))


def test_sums_in_another_order_are_the_same_but_for_rounding() -> None:
    x, w = torch.randn(8, 64), torch.randn(32, 64)
    other = summed_otherwise(torch.nn.functional.linear, (x, w), {})
    assert other is not None
    assert torch.allclose(other, torch.nn.functional.linear(x, w), atol=1e-4)
    pictures, kernels = torch.randn(1, 8, 5, 5), torch.randn(4, 8, 3, 3)
    other = summed_otherwise(torch.conv2d, (pictures, kernels), {})
    assert other is not None
    assert torch.allclose(other, torch.conv2d(pictures, kernels), atol=1e-4)
    assert summed_otherwise(torch.add, (x, x), {}) is None


def test_the_same_captures_again_are_not_replayed(judged: list[Judged]) -> None:
    replay = Replay()
    dump = Path(of(judged, HONEST)[0].case.target)
    first = replay.of(dump)
    known = len(replay._known)
    assert replay.of(dump) == first
    assert len(replay._known) == known == first.calls


def case(family: str = FORWARD, **more: object) -> FaultCase:
    found = {"culprits": ("Torch.mm.0.forward",), "moved": Size(1.0, 1.0), **more}
    return FaultCase("m", "float32", family, "scale 1.1", "t", **found)  # type: ignore[arg-type]


def test_the_first_row_counts_and_its_verdict_does() -> None:
    right, other = (["Torch.mm.0.forward", 9.0, "", ""], ["Torch.mm.0.backward", 9.0, "", ""])
    assert is_first(case(), [right, other])
    assert is_alone(case(), [right, other])
    assert not is_first(case(), [other, right])
    gap = ["Torch.mm.0.forward", 0.0, "behind Torch.add.0.forward", "not captured"]
    assert not is_first(case(), [gap])
    assert is_first(case(HIDDEN), [gap])
    weight = case(WEIGHT, culprits=(), names=("first.weight",))
    assert is_first(weight, [["Torch.mm.0.forward", 0.0, "first.weight differs", "other weight"]])
    assert not is_first(weight, [["Torch.mm.0.forward", 0.0, "last.weight", "other weight"]])


def test_tables_count_what_was_found_and_name_what_was_not() -> None:
    right = ["Torch.mm.0.forward", 9.0, "", "own error"]
    cases = [Judged(case(), {"two captures": [right]}), Judged(case(), {"two captures": []})]
    assert "| forward: scale 1.1 | 2 | 1 of 2 |" in table_of_faults(cases)
    honest = Judged(case(HONEST), {"two captures": [right]})
    assert "| two captures | 1 | 1 |" in table_of_honest([honest])
    assert len(misses([*cases, honest])) == 2


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "random"),
    [
        ("dropout", (torch.ones(2),), {"p": 0.0, "training": True}, False),
        ("dropout", (torch.ones(2),), {"p": 0.1}, True),
        ("dropout", (torch.ones(2), 0.0, True), {}, False),
        ("dropout", (torch.ones(2),), {}, True),
        ("scaled_dot_product_attention", (), {"dropout_p": 0.0}, False),
        ("scaled_dot_product_attention", (), {"dropout_p": 0.1}, True),
        ("bernoulli_", (torch.ones(2),), {}, True),
        ("add", (torch.ones(2),), {}, False),
    ],
)
def test_a_call_that_drops_nothing_is_no_random_one(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], random: bool
) -> None:
    call = MadeStep("key", CallName("Functional", name), torch.relu, args, kwargs, True)
    assert is_random(call) == random


@pytest.mark.parametrize(
    ("names", "way"),
    [
        (("a double softmax", "gradients not set to zero"), TENSORS),
        (("a mean for a sum", "a variance for a deviation"), TENSORS),
        (("a wrong Function.backward", "a Function.backward without its gradient"), STATISTICS),
    ],
)
def test_a_mistake_in_a_script_is_named_with_its_line_and_the_script_as_it_was_is_honest(
    names: tuple[str, ...], way: str, tmp_path: Path
) -> None:
    mistakes = [each for each in MISTAKES if each.name in names]
    assert len(mistakes) == len(names)
    for name, _, rows, is_right in searched(mistakes, [way], tmp_path):
        assert is_right, (name, rows[:1])


def test_there_are_thirty_mistakes_each_with_a_line_to_name() -> None:
    assert len({each.name for each in MISTAKES}) == len(MISTAKES) == 30
    for each in MISTAKES:
        assert any(expected_lines(each)), each.name
