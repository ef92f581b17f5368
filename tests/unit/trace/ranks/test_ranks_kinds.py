"""Kinds of findings that need more than one step, stage or module: the fault is found, its twin is silent."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranked_dumps import GROUP, Writer, found_in, outcome_of

from ray_precheck.errors import DumpError
from ray_precheck.trace.difference.rows import ERROR, WARNING
from ray_precheck.trace.ranks.nouns import RankFault
from ray_precheck.trace.ranks.summary import summarize

DP, TP, PP = (("dp", 2),), (("tp", 2),), (("pp", 2),)
draw = np.random.default_rng(5)
W, B, G0, G1 = (draw.normal(size=(4, 6)) for _ in range(4))
X0, X1 = (draw.normal(size=(3, 6)) for _ in range(2))


def with_buffer(folder: Path, later: tuple[Any, Any]) -> list[Writer]:
    """Two steps of two ranks whose buffer begins alike; `later` is what it is in the second one."""
    writers = []
    for step in range(2):
        for rank in range(2):
            w = Writer(folder, rank, step)
            held = (B, later[rank])[step]
            w.write({
                "Functional.batch_norm.0.forward": w.call(
                    [w.tensor((X0, X1)[rank], argument="x"), w.tensor(held, buffer="n.running_mean")],
                    [w.tensor((X0, X1)[rank] * 2.0)],
                )
            })  # fmt: skip
            writers.append(w)
    return writers


def test_a_buffer_that_is_not_kept_together_is_a_warning(tmp_path: Path) -> None:
    assert found_in(with_buffer(tmp_path / "right", (G0, G0)), DP) == ()
    found = found_in(with_buffer(tmp_path / "wrong", (G0, G1)), DP)
    assert [(each.kind, each.verdict, each.step) for each in found] == [
        (RankFault.BUFFER, WARNING, 1)
    ]
    assert "n.running_mean was the same on all ranks in step 0" in found[0].message


def test_fewer_calls_with_gradients_are_a_warning_and_others_are_not(tmp_path: Path) -> None:
    def ranks(folder: Path, extra: str) -> list[Writer]:
        writers = []
        for rank in range(2):
            w = Writer(folder, rank)
            records = {
                "Torch.exp.0.forward": w.call([w.tensor(X0 + rank)], [w.tensor(X1 + rank)]),
                "Torch.exp.0.backward": {
                    "input": [w.tensor(X1 + rank)],
                    "output": [w.tensor(X0 + rank)],
                },
            }
            if rank:
                records[extra] = w.call([w.tensor(X0)], [w.tensor(X1)])
            w.write(records)
            writers.append(w)
        return writers

    assert found_in(ranks(tmp_path / "logs", "Torch.mean.0.forward"), DP) == ()
    found = found_in(ranks(tmp_path / "wrong", "Torch.exp.1.backward"), DP)
    assert [(each.kind, each.verdict, each.ranks) for each in found] == [
        (RankFault.CALLS, WARNING, "0")
    ]


def test_a_send_that_nobody_received_is_a_warning(tmp_path: Path) -> None:
    def ranks(folder: Path, received: int) -> list[Writer]:
        writers = []
        for rank, (name, word, count) in enumerate((("send", "dst", 2), ("recv", "src", received))):
            w = Writer(folder, rank)
            end = {word: {"type": "int", "value": 1 - rank}}
            w.write(
                {
                    f"Distributed.{name}.{number}.forward": {
                        **w.call([w.tensor(X0 + number)], [w.tensor(X0 + number)], group=GROUP),
                        "input_kwargs": end,
                    }
                    for number in range(count)
                }
            )
            writers.append(w)
        return writers

    assert found_in(ranks(tmp_path / "right", 2), PP) == ()
    found = found_in(ranks(tmp_path / "wrong", 1), PP)
    assert [(each.kind, each.verdict) for each in found] == [(RankFault.UNPAIRED, WARNING)]
    assert "rank 0 sent 2 tensors to rank 1, which received 1" in found[0].message


@pytest.mark.parametrize(
    ("second", "kinds"), [(G0 + G1, []), (G1, [RankFault.GRADIENT])]
)  # fmt: skip
def test_tied_parameters_of_two_stages_have_one_gradient(
    tmp_path: Path, second: Any, kinds: list[RankFault]
) -> None:
    writers = []
    for rank, name in enumerate(("embedding.weight", "head.weight")):
        w = Writer(tmp_path, rank)
        w.write(
            {
                "Distributed.all_reduce.0.forward": w.call(
                    [w.tensor((G0, G1)[rank])], [w.tensor(G0 + G1)], group=GROUP
                ),
                "Optimizer.SGD.0.forward": w.update({name: (W, (G0 + G1, second)[rank], B)}),
            }
        )
        writers.append(w)
    assert [each.kind for each in found_in(writers, PP)] == kinds


def scaled(folder: Path, factor: float) -> list[Writer]:
    """Two ranks that reduce three gradients, of which the update gets one `factor` times."""
    names = "a.weight", "b.weight", "c.weight"
    own = draw.normal(size=(2, 3, 4, 6))
    writers = []
    for rank in range(2):
        w = Writer(folder, rank)
        means = [own[:, number].mean(axis=0) for number in range(3)]
        means[2] = means[2] * factor
        records: dict[str, Any] = {
            f"Distributed.all_reduce.{number}.forward": w.call(
                [w.tensor(own[rank, number])], [w.tensor(own[:, number].sum(axis=0))], group=GROUP
            )
            for number in range(3)
        }
        records["Optimizer.SGD.0.forward"] = w.update(
            {name: (W + n, means[n], B + n) for n, name in enumerate(names)}
        )
        records |= {
            f"Module.{name[0]}.Linear.parameters_grad.0": {"weight": [w.tensor(own[rank, number])]}
            for number, name in enumerate(names)
        }
        w.write(records)
        writers.append(w)
    return writers


def test_a_gradient_that_is_reduced_twice_is_an_error_and_a_clipped_one_is_not(
    tmp_path: Path,
) -> None:
    assert found_in(scaled(tmp_path / "right", 1.0), DP) == ()
    twice = found_in(scaled(tmp_path / "twice", 2.0), DP)
    assert [(each.name, each.verdict) for each in twice] == [("c.weight", ERROR)]
    assert "2 times" in twice[0].message
    clipped = found_in(scaled(tmp_path / "clipped", 0.03), DP)
    assert [(each.name, each.verdict) for each in clipped] == [("c.weight", WARNING)]


def test_positions_that_are_not_offset_by_the_part_are_named(tmp_path: Path) -> None:
    def ranks(folder: Path, offset: int) -> list[Writer]:
        writers = []
        for rank in range(2):
            w = Writer(folder, rank)
            rows = np.arange(3) + rank * offset
            read, own = B[rows % 4], (X0, X1)[rank]
            w.write({
                "Functional.embedding.0.forward": w.call(
                    [w.tensor(rows), w.tensor(B, parameter="positions.weight")], [w.tensor(read)]
                ),
                "Tensor.__add__.0.forward": w.call(
                    [w.tensor(own), w.tensor(read)], [w.tensor(own + read)]
                ),
                "Distributed.all_gather_into_tensor.0.forward": w.call(
                    [w.tensor(B), w.tensor(own)],
                    [w.tensor(np.concatenate([X0, X1])), w.tensor(own)], group=GROUP,
                ),
            })  # fmt: skip
            writers.append(w)
        return writers

    assert found_in(ranks(tmp_path / "right", 1), TP) == ()
    found = found_in(ranks(tmp_path / "wrong", 0), TP)
    assert [(each.kind, each.verdict) for each in found] == [(RankFault.ACTIVATION, ERROR)]
    assert "the positions are not offset" in found[0].message


def test_a_module_without_the_collective_of_its_likes_is_named(tmp_path: Path) -> None:
    def ranks(folder: Path, last: int) -> list[Writer]:
        writers = []
        for rank in range(2):
            w = Writer(folder, rank)
            records: dict[str, Any] = {}
            around = {}
            for layer in range(3):
                module = f"Module.layers.{layer}.down.Row.forward.0"
                if layer <= last:
                    key = f"Distributed.all_reduce.{layer}.forward"
                    part, whole = (X0 + layer, X1 * layer)[rank], X0 + layer + X1 * layer
                    records[key] = w.call([w.tensor(part)], [w.tensor(whole)], group=GROUP)
                    around[key] = module
                records[module] = w.call([w.tensor(X0)], [w.tensor(X1)])
            w.write(records)
            w.path.with_name("construct.json").write_text(json.dumps(around))
            writers.append(w)
        return writers

    assert found_in(ranks(tmp_path / "right", 2), TP) == ()
    found = [
        each
        for each in found_in(ranks(tmp_path / "wrong", 1), TP)
        if each.kind is RankFault.COLLECTIVE
    ]
    assert [each.verdict for each in found] == [ERROR]
    assert "layers.2.down makes no collective" in found[0].message


def test_shards_that_each_rank_clips_by_a_norm_of_its_own_are_named(tmp_path: Path) -> None:
    def ranks(folder: Path, factors: tuple[float, float]) -> list[Writer]:
        writers = []
        whole = draw.normal(size=(2, 2, 8, 6))
        for rank in range(2):
            w = Writer(folder, rank)
            shards = whole.sum(axis=0)[:, 4 * rank : 4 * rank + 4]
            records: dict[str, Any] = {
                f"Distributed.reduce_scatter_tensor.{number}.forward": w.call(
                    [None, w.tensor(whole[rank, number])], [w.tensor(shard)],
                    group=GROUP, by="FSDP", parameters=[f"layers.{number}.weight"],
                )
                for number, shard in enumerate(shards)
            }  # fmt: skip
            records["Optimizer.SGD.0.forward"] = w.update(
                {
                    f"layers.{number}.weight": (W + rank, shard * factors[rank], B + rank)
                    for number, shard in enumerate(shards)
                }
            )
            w.write(records)
            writers.append(w)
        return writers

    def shown(factors: tuple[float, float]) -> list[str]:
        found = found_in(ranks(tmp_path / str(factors), factors), DP)
        return [each.message for each in found if each.kind is RankFault.GRADIENT]

    assert shown((0.5, 0.5)) == []
    assert "a norm of its own shards" in shown((0.5, 0.4))[0]


def test_what_is_not_read_and_not_recomputed_is_said(tmp_path: Path) -> None:
    many = {"type": "torch.ProcessGroup", "group_ranks": list(range(65))}
    writers = []
    for rank in range(2):
        w = Writer(tmp_path, rank)
        parts = [w.tensor(X0 + number) for number in range(65)]
        w.write(
            {
                "Torch.exp.0.forward": w.call([w.tensor(X0, data_name="exp.pt")], [w.tensor(X1)]),
                "Distributed.all_to_all.0.forward": w.call([parts], [parts], group=many),
            }
        )
        writers.append(w)
    said = "\n".join(outcome_of(writers, DP).not_checked)
    assert "(1 of them)" in said
    assert "the files of tensors are not read here" in said


def test_a_rank_whose_sketches_are_gone_is_not_compared_with_those_that_have_them(
    tmp_path: Path,
) -> None:
    writers = [Writer(tmp_path, rank) for rank in range(3)]
    for each in writers:
        weight = each.tensor(W, parameter="weight")
        each.write({"Torch.mul.0.forward": each.call([weight], [each.tensor(W)])})
    writers[1].path.with_name("sketches.npy").unlink()
    found = outcome_of(writers)
    assert found.findings == ()
    (said,) = (each for each in found.not_checked if "rank 1 in step 0" in each)
    assert "tells values by four statistics, those of other ranks by sketches" in said


def test_sketches_that_were_cut_make_a_dump_unreadable(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 0)
    weight = writer.tensor(W, parameter="weight")
    writer.write({"Torch.mul.0.forward": writer.call([weight], [writer.tensor(W)])})
    path = writer.path.with_name("sketches.npy")
    np.save(path, np.load(path)[:1])
    with pytest.raises(DumpError, match=r"names sketch 1, and .* has 1: it was cut"):
        summarize(writer.path, 0, 0, "step0/rank0")


@pytest.mark.parametrize(("share", "is_wrong"), [(5e-6, False), (1e-3, True)])
def test_norms_that_float32_rounds_are_no_wrong_gather(
    tmp_path: Path, share: float, is_wrong: bool
) -> None:
    parts = [np.sin(np.arange(50_000.0) + rank) for rank in range(2)]
    whole = np.concatenate(parts)
    writers = []
    for rank in range(2):
        w = Writer(tmp_path, rank)
        given = w.tensor(whole, Norm=float(np.linalg.norm(whole)) * (1 + share))
        own = w.tensor(parts[rank])
        w.write({
            "Distributed.all_gather_into_tensor.0.forward": w.call(
                [w.tensor(whole * 0.5), own], [given, own], group=GROUP
            )
        })  # fmt: skip
        writers.append(w)
    found = [each.message for each in found_in(writers, DP)]
    assert ["Norm is" in each for each in found] == [True] * is_wrong
