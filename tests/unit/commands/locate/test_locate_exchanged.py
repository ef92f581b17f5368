"""Collectives, updates and parameters that one of two runs lacks, or that were asked to do something else."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.commands.locate.run import locate_captures
from ray_precheck.commands.locate.walk.places import RootPlace
from tests.unit.commands.locate.run_records import tensor, weight

pytestmark = pytest.mark.unit
Dump = dict[str, Any]
Change = Callable[[Dump, int], None]
NAMES = ("layers.0.weight", "layers.0.n2.weight")
GROUP = {"type": "torch.ProcessGroup", "group_ranks": [0, 1]}
REDUCE, UPDATE = "Distributed.all_reduce.{}.forward", "Optimizer.SGD.0.forward"


def _text(value: str) -> dict[str, str]:
    return {"type": "str", "value": value}


def _dump(rank: int) -> Dump:
    """Return a step of one rank: a layer, its gradients, their reduction and the update."""
    samples = tensor(5.0 + rank, shape=(4,), argument="tokens")
    found: Dump = {
        "Functional.linear.0.forward": _call([samples, weight(0.5)], [tensor(2.0 + rank)]),
        "Functional.linear.0.backward": {
            "input": [tensor(1.5 + rank)],
            "output": [tensor(0.25 + rank), tensor(0.125 + rank)],
        },
    }
    for number, before in enumerate((0.25 + rank, 0.125 + rank)):
        own = _call([tensor(before)], [tensor(_reduced(number))])
        found[REDUCE.format(number)] = {**own, "group": GROUP}
    group = {
        "lr": {"type": "float", "value": 0.1},
        "names": [*map(_text, NAMES)],
        "params": [tensor(7.0), tensor(9.0)],
        "grads": [tensor(_reduced(0)), tensor(_reduced(1))],
    }
    found[UPDATE] = _call([group], [{"params": [tensor(7.5), tensor(9.5)]}])
    return found


def _call(inputs: Sequence[Any], outputs: Sequence[Any]) -> Dump:
    return {"input_args": list(inputs), "input_kwargs": {}, "output": list(outputs)}


def _reduced(number: int) -> float:
    return 2.0 * number + 11.0


def _written(folder: Path, change: Change | None = None, steps: int = 1) -> Path:
    for step in range(steps):
        for rank in range(2):
            dump = _dump(rank)
            if change is not None and step == 0:
                change(dump, rank)
            place = folder / f"step{step}" / f"rank{rank}"
            place.mkdir(parents=True)
            head = {"task": "statistics", "level": "L1", "framework": "pytorch"}
            (place / "dump.json").write_text(json.dumps({**head, "data": dump}))
    return folder


def _located(
    tmp_path: Path, change: Change, golden: Change | None = None, steps: int = 1
) -> tuple[RootPlace, ...]:
    target = _written(tmp_path / "target", change, steps)
    other = _written(tmp_path / "golden", golden, steps)
    return locate_captures(target, other, out=tmp_path / "out").places


def _is_not_reduced(dump: Dump, rank: int) -> None:
    """Leave out the reduction of the second gradient, which the update gets as the backward pass gave it."""
    del dump[REDUCE.format(1)]
    dump[UPDATE]["input_args"][0]["grads"][1] = tensor(0.125 + rank)


def test_honest_ranks_have_no_root(tmp_path: Path) -> None:
    assert _located(tmp_path, lambda dump, rank: None) == ()


def test_a_missing_collective_is_named_with_its_group_and_its_parameter(tmp_path: Path) -> None:
    (place,) = _located(tmp_path, _is_not_reduced)
    root = place.root
    assert (root.key, root.is_golden, root.cause) == (REDUCE.format(1), True, "missing collective")
    assert root.message.startswith(
        "the golden run has Distributed.all_reduce.1 (group 0-1, of the gradient of layers.0.n2.weight) here;"
        " the target has none: the gradient of layers.0.n2.weight"
    )
    assert place.ranks == ("0", "1")


def test_an_extra_collective_is_named_too(tmp_path: Path) -> None:
    (place,) = _located(tmp_path, lambda dump, rank: None, _is_not_reduced)
    assert (place.root.key, place.root.cause) == (REDUCE.format(1), "extra collective")
    assert "runs only in the target; the golden run has none here" in place.root.message


def test_a_collective_whose_value_changes_nothing_accuses_nobody(tmp_path: Path) -> None:
    def logs(dump: Dump, rank: int) -> None:
        """Reduce a loss for a line of a log, which nothing reads."""
        own = _call([tensor(31.0 + rank)], [tensor(63.0)])
        dump["Distributed.all_reduce.2.forward"] = {**own, "group": GROUP}

    assert _located(tmp_path, logs) == ()


def test_a_send_that_nothing_on_its_rank_reads_is_named_where_something_differs(
    tmp_path: Path,
) -> None:
    def sends(dump: Dump, rank: int) -> None:
        if rank:
            own = _call([tensor(2.0 + rank), {"type": "int", "value": 0}], [])
            dump["Distributed.send.0.forward"] = {**own, "group": GROUP, "sequence": 0}

    def keeps(dump: Dump, rank: int) -> None:
        """Send nothing; the other rank's update shows it."""
        if not rank:
            dump[UPDATE]["input_args"][0]["grads"][0] = tensor(400.0)

    first, second = _located(tmp_path, keeps, sends)
    assert (first.root.key, first.dump.rank) == ("Distributed.send.0.forward", "1")
    assert first.root.message == (
        "the golden run has Distributed.send.0 (to rank 0) here; the target has none"
    )
    assert second.root.message.startswith("the gradient of layers.0.weight (Optimizer.SGD.0")


@pytest.mark.parametrize(
    ("field", "value", "cause", "said"),
    [
        (
            "group", {"type": "torch.ProcessGroup", "group_ranks": [0, 2]}, "another group",
            "ran in group 0,2 (golden: group 0-1)",
        ),
        (
            "input_kwargs",
            {"op": {"type": "torch.distributed.ReduceOp", "value": "RedOpType.AVG"}},
            "AVG for SUM", "averages where that of the golden run sums (AVG for SUM)",
        ),
    ],
)  # fmt: skip
def test_what_a_collective_was_asked_is_compared(
    tmp_path: Path, field: str, value: Dump, cause: str, said: str
) -> None:
    def change(dump: Dump, rank: int) -> None:
        dump[REDUCE.format(0)][field] = value

    (place,) = _located(tmp_path, change)
    assert (place.root.key, place.root.cause) == (REDUCE.format(0), cause)
    assert said in place.root.message


def test_another_source_of_a_broadcast_is_named(tmp_path: Path) -> None:
    def broadcasts(source: int) -> Change:
        def change(dump: Dump, rank: int) -> None:
            own = _call([tensor(3.0), {"type": "int", "value": source}], [tensor(3.0)])
            dump["Distributed.broadcast.0.forward"] = {**own, "group": GROUP}

        return change

    (place,) = _located(tmp_path, broadcasts(1), broadcasts(0))
    assert place.root.cause == "another source"
    assert "has another rank that sends: rank 1 (golden: 0)" in place.root.message


def test_a_factor_on_all_ranks_is_told(tmp_path: Path) -> None:
    def doubled(dump: Dump, rank: int) -> None:
        for number, each in enumerate((0, 1)):
            dump[REDUCE.format(each)]["output"] = [tensor(2 * _reduced(number))]
            dump[UPDATE]["input_args"][0]["grads"][number] = tensor(2 * _reduced(number))
        kwargs = {"op": {"type": "torch.distributed.ReduceOp", "value": "RedOpType.SUM"}}
        dump[REDUCE.format(0)]["input_kwargs"] = kwargs

    def averaged(dump: Dump, rank: int) -> None:
        kwargs = {"op": {"type": "torch.distributed.ReduceOp", "value": "RedOpType.AVG"}}
        dump[REDUCE.format(0)]["input_kwargs"] = kwargs

    first = _located(tmp_path, doubled, averaged)[0]
    assert (first.root.cause, first.ranks) == ("SUM for AVG x2", ("0", "1"))
    assert "it gives 2 times what the golden run's gives" in first.root.message


def test_an_update_that_lacks_a_parameter_names_it_and_the_others_stay_pairs(
    tmp_path: Path,
) -> None:
    def lacks(dump: Dump, rank: int) -> None:
        if rank:
            group = dump[UPDATE]["input_args"][0]
            for name in ("names", "params", "grads"):
                del group[name][0]
            del dump[UPDATE]["output"][0]["params"][0]

    (place,) = _located(tmp_path, lacks)
    assert (place.root.cause, place.dump.rank) == ("parameter not updated", "1")
    assert place.root.message.startswith("layers.0.weight is not updated by Optimizer.SGD.0")


def test_a_missing_update_is_named_where_a_later_step_differs(tmp_path: Path) -> None:
    def skips(dump: Dump, rank: int) -> None:
        if rank:
            del dump[UPDATE]

    assert _located(tmp_path, skips) == ()
    target = _written(tmp_path / "two", skips, steps=2)
    later = target / "step1" / "rank1" / "dump.json"
    content = json.loads(later.read_text())
    content["data"]["Functional.linear.0.forward"]["input_args"][1] = weight(0.9)
    later.write_text(json.dumps(content))
    golden = _written(tmp_path / "two_golden", steps=2)
    (place,) = locate_captures(target, golden, out=tmp_path / "out_two").places
    assert (place.root.key, place.dump.step, place.dump.rank) == (UPDATE, "0", "1")
    assert place.root.message == "the golden run has Optimizer.SGD.0 here; the target has none"


def _bucket(names: Sequence[str], numbers: Sequence[float]) -> Dump:
    own = _call([[*map(tensor, numbers)]], [[tensor(each + 20.0) for each in numbers]])
    return {
        **own,
        "input_kwargs": {"op": {"type": "torch.distributed.ReduceOp", "value": "RedOpType.AVG"}},
        "group": GROUP, "parameters": [f"module.{name}" for name in names],
        "by": "DistributedDataParallel",
    }  # fmt: skip


def test_a_parameter_in_no_bucket_was_not_reduced(tmp_path: Path) -> None:
    key = "Distributed.ddp_all_reduce.0.forward"

    def without(dump: Dump, rank: int) -> None:
        dump[key] = _bucket(["b.weight"], [3.5])

    def whole(dump: Dump, rank: int) -> None:
        dump[key] = _bucket(["a.weight", "b.weight"], [2.5, 3.5])

    (place,) = _located(tmp_path, without, whole)
    assert (place.root.key, place.root.cause) == (key, "not reduced")
    assert place.root.message.startswith("a.weight is in no ddp_all_reduce of the target")


def test_the_samples_of_another_rank_are_said_to_be_its(tmp_path: Path) -> None:
    def takes(dump: Dump, rank: int) -> None:
        dump["Functional.linear.0.forward"]["input_args"][0] = tensor(
            5.0, shape=(4,), argument="tokens"
        )

    (place,) = _located(tmp_path, takes)
    assert (place.root.cause, place.dump.rank) == ("rank 1 has rank 0's samples", "1")


def test_a_part_of_another_rank_is_said_to_be_its(tmp_path: Path) -> None:
    def sharded(dump: Dump, rank: int) -> None:
        dump["Functional.linear.0.forward"]["input_args"][1] = weight(0.5 + rank)

    def wrong(dump: Dump, rank: int) -> None:
        dump["Functional.linear.0.forward"]["input_args"][1] = weight(0.5)

    (place,) = _located(tmp_path, wrong, sharded)
    assert (place.root.cause, place.dump.rank) == ("rank 1 has rank 0's part", "1")


def test_a_weight_that_its_own_update_did_not_give_is_stale(tmp_path: Path) -> None:
    def begins_with(number: float) -> Change:
        def change(dump: Dump, rank: int) -> None:
            own = weight(number) | {"parameter": NAMES[0]}
            dump["Functional.linear.0.forward"]["input_args"][1] = own

        return change

    def run(folder: str, number: float) -> Path:
        root = _written(tmp_path / folder, begins_with(7.0), steps=2)
        for rank in range(2):
            path = root / "step1" / f"rank{rank}" / "dump.json"
            content = json.loads(path.read_text())
            begins_with(number if rank else 7.5)(content["data"], rank)
            path.write_text(json.dumps(content))
        return root

    found = locate_captures(run("stale", 7.0), run("right", 7.5), out=tmp_path / "out").places
    (place,) = found
    assert (place.root.cause, place.dump.step, place.dump.rank) == ("stale parameter", "1", "1")
    assert "does not begin step 1 with what its update in step 0 gave" in place.root.message


def test_parameters_that_an_update_has_moved_are_no_gap_where_they_are_gathered(
    tmp_path: Path,
) -> None:
    def gathers(number: float, more: Dump) -> Change:
        def change(dump: Dump, rank: int) -> None:
            own = _call([None, tensor(number)], [tensor(number * 1.0, shape=(8, 4))])
            dump["Distributed.all_gather_into_tensor.0.forward"] = {**own, "group": GROUP, **more}

        return change

    def run(name: str, number: float, more: Dump) -> Path:
        root = _written(tmp_path / name, None, steps=2)
        for rank in range(2):
            path = root / "step1" / f"rank{rank}" / "dump.json"
            content = json.loads(path.read_text())
            gathers(number, more)(content["data"], rank)
            path.write_text(json.dumps(content))
        return root

    told = {"by": "FSDP", "parameters": ["a.weight"]}
    honest = run("moved", 6.001, told), run("golden", 6.0, told)
    assert locate_captures(*honest, out=tmp_path / "out").places == ()
    other = run("moved_by_hand", 6.001, {}), run("golden_by_hand", 6.0, {})
    assert locate_captures(*other, out=tmp_path / "out_by_hand").places != ()


@pytest.mark.parametrize(("share", "is_found"), [(2e-6, False), (1e-2, True)])
def test_a_gradient_that_was_added_up_outside_is_not_judged_as_a_value_that_was_passed_on(
    tmp_path: Path, share: float, is_found: bool
) -> None:
    def added_up(share: float) -> Change:
        def change(dump: Dump, rank: int) -> None:
            dump[REDUCE.format(1)]["input_args"] = [tensor((0.75 + rank) * (1 + share))]

        return change

    places = _located(tmp_path, added_up(share), added_up(0.0))
    assert bool(places) is is_found
