"""Each check of ranks: the fault is found, and its honest twin is not accused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranked_dumps import GROUP, Writer, found_in, outcome_of

from ray_precheck.trace.difference.rows import ERROR, WARNING
from ray_precheck.trace.ranks.nouns import RankFault

DP, TP = (("dp", 2),), (("tp", 2),)
draw = np.random.default_rng(3)
W, B, G0, G1 = (draw.normal(size=(4, 6)) for _ in range(4))
X0, X1 = (draw.normal(size=(3, 6)) for _ in range(2))
PARTS = draw.normal(size=(2, 3, 6))


def data_parallel(
    folder: Path,
    *,
    gradients: tuple[Any, Any] = (G0 + G1, G0 + G1),
    starts: tuple[Any, Any] = (W, W),
    after: tuple[Any, Any] = (B, B),
    rates: tuple[float, float] = (0.1, 0.1),
    inputs: tuple[Any, Any] = (X0, X1),
) -> list[Writer]:
    """Two ranks with samples of their own, of which the gradient of `a.weight` is reduced by hand."""
    writers = []
    for rank in range(2):
        w = Writer(folder, rank)
        own = (G0, G1)[rank]
        w.write({
            "Functional.linear.0.forward": w.call(
                [w.tensor(inputs[rank], argument="x"), w.tensor(starts[rank], parameter="a.weight")],
                [w.tensor(inputs[rank] * 2.0)],
            ),
            "Distributed.all_reduce.0.forward": w.call(
                [w.tensor(own)], [w.tensor(G0 + G1)], group=GROUP
            ),
            "Optimizer.SGD.0.forward": w.update(
                {"a.weight": (starts[rank], gradients[rank], after[rank])}, rates[rank]
            ),
        })  # fmt: skip
        writers.append(w)
    return writers


def test_ranks_with_their_own_samples_and_one_gradient_are_not_accused(tmp_path: Path) -> None:
    found = outcome_of(data_parallel(tmp_path))
    assert found.findings == ()
    assert [(group.kind, group.ranks) for group in found.layout.groups] == [("dp", (0, 1))]
    assert any("sketches" in sentence for sentence in found.checked)


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        ({"gradients": (G0, G1)}, RankFault.GRADIENT, "a.weight: rank 1"),
        ({"gradients": (G0, 2.0 * G0)}, RankFault.GRADIENT, "2 times that of rank 0"),
        ({"starts": (W, W + 0.5)}, RankFault.PARAMETER, "rank 1 has other values than rank 0"),
        (
            {"after": (B, B + 0.1)},
            RankFault.UPDATE,
            "a.weight: the update made it differ on rank 1",
        ),
        ({"after": (B, W)}, RankFault.UPDATE, "rank 1 did not change it"),
        ({"rates": (0.1, 0.2)}, RankFault.CONFIGURATION, "learning rate (lr)"),
        ({"inputs": (X0, X0)}, RankFault.SAMPLE, "rank 1 has rank 0's samples"),
    ],
)
def test_a_fault_of_data_parallel_ranks_is_named(
    tmp_path: Path, wrong: dict[str, Any], kind: RankFault, words: str
) -> None:
    first = found_in(data_parallel(tmp_path, **wrong), DP)[0]
    assert (first.kind, first.verdict) == (kind, ERROR)
    assert words in first.message


def test_what_agrees_but_for_rounding_is_a_warning(tmp_path: Path) -> None:
    near = (G0 + G1) * (1 + 1e-7)
    found = found_in(data_parallel(tmp_path, gradients=(G0 + G1, near)), DP)
    assert [each.verdict for each in found] == [WARNING]


def test_a_rank_that_made_no_update_is_stale(tmp_path: Path) -> None:
    writers = []
    for rank in range(2):
        w = Writer(tmp_path, rank)
        records = {"Torch.add.0.forward": w.call([w.tensor(X0)], [w.tensor(X1)])}
        if rank == 0:
            records["Optimizer.SGD.0.forward"] = w.update({"a.weight": (W, G0, B)})
        w.write(records)
        writers.append(w)
    first = found_in(writers, DP)[0]
    assert first.kind is RankFault.UPDATE
    assert "rank 1 made no update" in first.message


def reduced(folder: Path, got: Callable[[int], Any], op: str = "") -> list[Writer]:
    """Two ranks that add up what each has of its own."""
    writers = []
    for rank in range(2):
        w = Writer(folder, rank)
        options = [{"type": "str", "value": f"RedOpType.{op if rank else 'SUM'}"}] if op else []
        w.write({
            "Distributed.all_reduce.0.forward": w.call(
                [w.tensor(PARTS[rank]), *options], [w.tensor(got(rank))], group=GROUP
            )
        })  # fmt: skip
        writers.append(w)
    return writers


def test_a_collective_is_recomputed_from_what_all_ranks_brought(tmp_path: Path) -> None:
    total = PARTS.sum(axis=0)
    assert found_in(reduced(tmp_path / "right", lambda rank: total)) == ()
    broken = total.copy()
    broken[1, 2] += 0.25
    found = found_in(reduced(tmp_path / "wrong", lambda rank: broken if rank else total))
    assert [each.kind for each in found] == [RankFault.COLLECTIVE]
    assert "rank 1 got is not the SUM" in found[0].message
    assert "on rank 0 it is right" in found[0].message


def tensor_parallel(
    folder: Path, *, summed: bool = True, states: tuple[str, str] = ("aa", "bb"), bias: Any = None
) -> list[Writer]:
    """Two ranks with a part of a layer each, whose outputs are summed and added to what both have."""
    writers = []
    for rank in range(2):
        w = Writer(folder, rank)
        part = PARTS[rank]
        whole = PARTS.sum(axis=0) if summed else part
        dropped = w.call([w.tensor(part)], [w.tensor(part * 2.0)], generator=states[rank])
        records = {
            "Functional.linear.0.forward": w.call(
                [w.tensor(X0, argument="x"), w.tensor(G0 + rank, parameter="up.weight"),
                 w.tensor(np.zeros(4), parameter="up.bias")],
                [w.tensor(part)],
            ),
            "Functional.dropout.0.forward": dropped,
        }  # fmt: skip
        if summed:
            records["Distributed.all_reduce.0.forward"] = w.call(
                [w.tensor(part)], [w.tensor(whole)], group=GROUP
            )
        records["Tensor.__add__.0.forward"] = w.call(
            [w.tensor(X1), w.tensor(whole)], [w.tensor(X1 + whole)]
        )
        named = {"up.bias": (np.zeros(4), np.ones(4) * (rank + 1), np.ones(4) * (rank + 1))}
        records["Optimizer.SGD.0.forward"] = w.update(named)
        w.write(records)
        writers.append(w)
    return writers


def test_a_missing_sum_is_named_where_parts_meet_what_all_have(tmp_path: Path) -> None:
    assert found_in(tensor_parallel(tmp_path / "right"), TP) == ()
    first = found_in(tensor_parallel(tmp_path / "wrong", summed=False), TP)[0]
    assert first.kind is RankFault.ACTIVATION
    assert "a sum over the group tp 0-1 is missing" in first.message


def test_the_same_masks_in_a_divided_region_are_found(tmp_path: Path) -> None:
    found = found_in(tensor_parallel(tmp_path, states=("aa", "aa")), TP)
    assert [each.kind for each in found] == [RankFault.MASK]


def test_the_bias_of_a_part_that_begins_with_zeros_is_no_copy(tmp_path: Path) -> None:
    found = outcome_of(tensor_parallel(tmp_path), TP)
    assert found.findings == ()
    assert any("up.bias" in sentence for sentence in found.not_checked)


def test_an_operator_that_errs_on_one_rank_is_named(tmp_path: Path) -> None:
    writers = []
    for rank in range(3):
        w = Writer(tmp_path, rank)
        w.write({
            "Torch.exp.0.forward": w.call([w.tensor(X0)], [w.tensor(X1 + (rank == 2))]),
            "Torch.empty_like.0.forward": w.call([w.tensor(X0)], [w.tensor(X1 + rank)]),
            "Torch.rand_like.0.forward": w.call([w.tensor(X0)], [w.tensor(X1 + rank)]),
        })  # fmt: skip
        writers.append(w)
    found = found_in(writers, (("dp", 3),))
    assert [(each.name, each.ranks) for each in found] == [("Torch.exp.0.forward", "2")]


def test_a_part_of_another_rank_is_named_beside_its_like(tmp_path: Path) -> None:
    writers = []
    for rank in range(2):
        w = Writer(tmp_path, rank)
        w.write({
            f"Functional.linear.{layer}.forward": w.call(
                [w.tensor(X0 + layer), w.tensor(weight, parameter=f"layers.{layer}.up.weight")],
                [w.tensor(PARTS[rank] + layer)],
            )
            for layer, weight in enumerate((G0 + rank, G1 + rank, B))
        })  # fmt: skip
        writers.append(w)
    found = found_in(writers, TP)
    assert found[0].kind is RankFault.PARAMETER
    assert found[0].message.startswith("layers.2.up.weight: rank 1 has rank 0's part")


def test_what_follows_from_a_cause_is_counted_and_not_listed(tmp_path: Path) -> None:
    wrong = data_parallel(tmp_path, rates=(0.1, 0.2), after=(B, B + 0.1))
    found = found_in(wrong, DP)
    assert [each.kind for each in found] == [RankFault.CONFIGURATION]
    assert found[0].message.endswith("1 more finding follows from it")


def test_one_rank_alone_is_not_checked(tmp_path: Path) -> None:
    w = Writer(tmp_path, 0)
    w.write({"Torch.exp.0.forward": w.call([w.tensor(X0)], [w.tensor(X1)])})
    found = outcome_of([w])
    assert found.layout.groups == ()
    assert "one rank alone" in found.not_checked[0]
