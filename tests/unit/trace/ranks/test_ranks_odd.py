"""Programs that are odd and right: what no fault alone can show is no error."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranked_dumps import GROUP, Writer, found_in, outcome_of

from ray_precheck.trace.difference.rows import ERROR, WARNING
from ray_precheck.trace.ranks.nouns import RankFault

DP = (("dp", 2),)
draw = np.random.default_rng(7)
W, B, C, G0, G1 = (draw.normal(size=(4, 6)) for _ in range(5))
X0, X1 = (draw.normal(size=(3, 6)) for _ in range(2))


def ranks(folder: Path, write: Callable[[Writer, int, int], Any], steps: int = 1) -> list[Writer]:
    """Two ranks, whose records in a step are what `write` makes of a writer, the rank and the step."""
    writers = []
    for step in range(steps):
        for rank in range(2):
            w = Writer(folder, rank, step)
            w.write(write(w, rank, step))
            writers.append(w)
    return writers


def test_a_sweep_from_one_start_is_warned_of_alone(tmp_path: Path) -> None:
    def sweep(w: Writer, rank: int, step: int) -> Any:
        loss = np.array([1.0 + rank])
        return {
            "Functional.linear.0.forward": w.call(
                [w.tensor(X0, argument="x"), w.tensor(W, parameter="a.weight")], [w.tensor(X1)]
            ),
            "Distributed.all_reduce.0.forward": w.call(
                [w.tensor(loss)], [w.tensor(np.array([3.0]))], group=GROUP
            ),
            "Optimizer.SGD.0.forward": w.update({"a.weight": (W, G0, B + rank)}, 0.1 * (rank + 1)),
        }

    found = outcome_of(ranks(tmp_path, sweep))
    assert {each.verdict for each in found.findings} == {WARNING}
    assert any("train one model is not known" in each for each in found.not_checked)


def test_ranks_that_nothing_links_may_have_options_of_their_own(tmp_path: Path) -> None:
    def ensemble(w: Writer, rank: int, step: int) -> Any:
        return {
            "Distributed.all_reduce.0.forward": w.call(
                [w.tensor(np.array([1.0, 2.0]))], [w.tensor(np.array([2.0, 4.0]))], group=GROUP
            ),
            "Optimizer.SGD.0.forward": w.update(
                {"a.weight": (W + rank, (G0, G1)[rank], B + rank)}, 0.1 * (rank + 1)
            ),
        }

    found = found_in(ranks(tmp_path, ensemble))
    assert [(each.kind, each.verdict) for each in found] == [(RankFault.CONFIGURATION, WARNING)]


def served(later: Any) -> Callable[[Writer, int, int], Any]:
    """Rank 0 updates, and rank 1 begins the next step with `later`."""

    def write(w: Writer, rank: int, step: int) -> Any:
        value = W if not step else (B, later)[rank]
        records = {
            "Functional.linear.0.forward": w.call(
                [w.tensor((X0, X1)[rank] + step), w.tensor(value, parameter="a.weight")],
                [w.tensor((X1, X0)[rank] + step)],
            )
        }
        if not rank:
            records["Optimizer.SGD.0.forward"] = w.update({"a.weight": (value, G0, (B, C)[step])})
        return records

    return write


def test_a_rank_that_is_given_its_parameters_needs_no_update(tmp_path: Path) -> None:
    assert found_in(ranks(tmp_path / "server", served(B), 2), DP) == ()
    found = found_in(ranks(tmp_path / "stale", served(W), 2), DP)
    assert (found[0].kind, found[0].verdict) == (RankFault.UPDATE, ERROR)


def test_calls_are_paired_where_ranks_make_as_many_of_them(tmp_path: Path) -> None:
    def share(value: float) -> list[dict[str, Any]]:
        return [{"type": "float", "value": value}]

    def drops(w: Writer, shares: tuple[float, ...]) -> Any:
        return {
            f"Functional.dropout.{number}.forward": w.call(
                [w.tensor(X0 + w.rank), *share(value)], [w.tensor(X1 + w.rank)]
            )
            for number, value in enumerate(shares)
        }

    logged = ranks(tmp_path / "logged", lambda w, rank, _: drops(w, ((0.3, 0.1), (0.1,))[rank]))
    assert found_in(logged, DP) == ()
    other = ranks(tmp_path / "other", lambda w, rank, _: drops(w, ((0.3,), (0.1,))[rank]))
    assert [each.kind for each in found_in(other, DP)] == [RankFault.CONFIGURATION]


def test_local_steps_are_a_warning(tmp_path: Path) -> None:
    def local(w: Writer, rank: int, step: int) -> Any:
        own = (G0, G1)[rank]
        return {
            "Functional.linear.0.forward": w.call(
                [w.tensor((X0, X1)[rank], argument="x")], [w.tensor(X1 + rank)]
            ),
            "Optimizer.SGD.0.forward": w.update(
                {"a.weight": (W, own, W - own), "b.weight": (B, own, B - own)}
            ),
            "Distributed.all_reduce.0.forward": w.call(
                [w.tensor(W - own)], [w.tensor(2 * W - G0 - G1)], group=GROUP
            ),
            "Distributed.all_reduce.1.forward": w.call(
                [w.tensor(B - own)], [w.tensor(2 * B - G0 - G1)], group=GROUP
            ),
        }  # fmt: skip

    found = found_in(ranks(tmp_path, local), DP)
    assert [(each.kind, each.verdict) for each in found] == [(RankFault.GRADIENT, WARNING)]


def test_the_same_samples_with_other_noise_may_be_meant(tmp_path: Path) -> None:
    def noisy(apart: float) -> Callable[[Writer, int, int], Any]:
        return lambda w, rank, _: {
            "Functional.linear.0.forward": w.call([w.tensor(X0, argument="x")], [w.tensor(X1)]),
            "Functional.dropout.0.forward": w.call([w.tensor(X1)], [w.tensor(X0 + apart * rank)]),
        }

    verdicts = [
        [each.verdict for each in found_in(ranks(tmp_path / str(apart), noisy(apart)), DP)]
        for apart in (0.0, 1.0)
    ]
    assert verdicts == [[ERROR], [WARNING]]


def test_gradients_of_two_optimizers_are_not_taken_for_each_other(tmp_path: Path) -> None:
    def gan(w: Writer, rank: int, step: int) -> Any:
        own = (G0, G1)[rank]
        mean, other = (G0 + G1) / 2, -0.3 * own
        return {
            **{
                f"Optimizer.Adam.{number}.forward": w.update(
                    {f"{name}.weight": (W + number, mean, B + number) for name in names}
                )
                for number, names in enumerate(("abd", "g"))
            },
            **{
                f"Module.{name}.Linear.parameters_grad.0": {"weight": [w.tensor(own)]}
                for name in "abdg"
            },
            "Module.d.Linear.parameters_grad.1": {"weight": [w.tensor(other)]},
        }

    assert found_in(ranks(tmp_path, gan), DP) == ()


def test_a_sum_of_sparse_tensors_is_not_recomputed(tmp_path: Path) -> None:
    def rows(w: Writer, rank: int, step: int) -> Any:
        sparse = {"layout": "torch.sparse_coo", "sparse": {"nnz": 2}}
        return {
            "Distributed.all_reduce.0.forward": w.call(
                [w.tensor((G0, G1)[rank], **sparse)], [w.tensor(C, **sparse)], group=GROUP
            )
        }

    assert found_in(ranks(tmp_path, rows), DP) == ()


def test_stages_of_one_class_and_one_seed_are_a_pipeline(tmp_path: Path) -> None:
    def stage(w: Writer, rank: int, step: int) -> Any:
        name, word = (("send", "dst"), ("recv", "src"))[rank]
        return {
            f"Distributed.{name}.0.forward": {
                **w.call([w.tensor(X0)], [w.tensor(X0)], group=GROUP),
                "input_kwargs": {word: {"type": "int", "value": 1 - rank}},
            },
            "Optimizer.SGD.0.forward": w.update({"a.weight": (W, (G0, G1)[rank], B + rank)}),
        }

    found = outcome_of(ranks(tmp_path, stage))
    assert found.findings == ()
    assert [group.kind for group in found.layout.groups] == ["pp"]


@pytest.mark.parametrize("is_same", [False, True])
def test_ids_and_masks_of_one_range_are_no_same_samples_where_statistics_alone_tell(
    tmp_path: Path, is_same: bool
) -> None:
    ids = np.array([[0, 5, 3, 1], [0, 5, 1, 3]])
    table = draw.normal(size=(6, 2))

    def divided_vocabulary(w: Writer, rank: int, step: int) -> Any:
        own = ids[0 if is_same else rank]
        mask = w.tensor(own < 3) | {"dtype": "torch.bool", "Max": True, "Min": False}
        masked = w.tensor(np.where(own < 3, own, 0) + (0 if is_same else rank))
        return {
            "Tensor.__lt__.0.forward": w.call([w.tensor(own, argument="x")], [mask]),
            "Tensor.masked_fill.0.forward": w.call([w.tensor(own), mask], [masked]),
            "Functional.embedding.0.forward": w.call(
                [masked, w.tensor(table, parameter="e.weight")],
                # Each data-parallel rank has another mesh of tensor-parallel ones.
                [w.tensor(table[own], device_mesh=[2 * rank, 2 * rank + 1])],
            ),
            "Distributed.all_reduce.0.forward": w.call(
                [w.tensor(np.array([1.0, 2.0]))], [w.tensor(np.array([2.0, 4.0]))], group=GROUP
            ),
        }

    writers = ranks(tmp_path, divided_vocabulary)
    for each in writers:
        each.path.with_name("sketches.npy").unlink()
    found = found_in(writers, DP)
    assert [each.kind for each in found] == ([RankFault.SAMPLE] if is_same else [])
