"""Collectives recomputed from what all ranks brought, from files that are written as captures write them."""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_precheck.commands.locate.exchange import (
    EXCHANGE_TABLES,
    Exchanged,
    WholeExchanges,
    exchanges_of,
    read_recomputed,
)
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.result import Verdict
from ray_precheck.store.tables import header
from ray_precheck.trace.side import open_side

pytestmark = pytest.mark.unit
DRAW = np.random.default_rng(3)
HIDDEN = None


def _number(value: int) -> dict[str, Any]:
    return {"type": "int", "value": value}


def _text(value: str) -> dict[str, Any]:
    return {"type": "torch.distributed.ReduceOp", "value": value}


def _element(folder: Path, name: str, value: Any, dtype: str) -> Any:
    """Return the element of a value; arrays are written as files."""
    if isinstance(value, list):
        return [
            _element(folder, f"{name}.{number}", each, dtype) for number, each in enumerate(value)
        ]
    if not isinstance(value, np.ndarray):
        return value
    np.save(folder / f"{name}.npy", value)
    return {
        "type": "torch.Tensor",
        "dtype": f"torch.{dtype}",
        "shape": list(value.shape),
        "data_name": f"{name}.npy",
    }


def _exchanged(
    folder: Path,
    operation: str,
    ranks: Sequence[tuple[Sequence[Any], Sequence[Any]]],
    kwargs: Mapping[str, Any] | None = None,
    dtype: str = "float32",
) -> list[Exchanged]:
    """Write the captures of all ranks, each with what it got and gave; return their collectives."""
    found = []
    key = f"Distributed.{operation}.0.forward"
    for rank, (got, gave) in enumerate(ranks):
        place = folder / f"rank{rank}"
        tensors = place / "dump_tensor_data"
        tensors.mkdir(parents=True, exist_ok=True)
        record = {
            "input_args": [
                _element(tensors, f"{operation}.input.{number}", each, dtype)
                for number, each in enumerate(got)
            ],
            "input_kwargs": kwargs or {},
            "output": [
                _element(tensors, f"{operation}.output.{number}", each, dtype)
                for number, each in enumerate(gave)
            ],
            "group": {"type": "torch.ProcessGroup", "group_ranks": list(range(len(ranks)))},
        }
        content = {"task": "tensor", "framework": "pytorch", "data": {key: record}}
        (place / "dump.json").write_text(json.dumps(content))
        with open_side(place / "dump.json") as side:
            found += exchanges_of(side, f"step0/rank{rank}", "0", str(rank))
    return found


def _verdicts(exchanged: Sequence[Exchanged]) -> tuple[Verdict, list[str]]:
    (done,) = WholeExchanges(exchanged).rows(set())
    rows = csv.reader(done.details.decode().splitlines())
    return done.verdict, [row[3] for row in rows]


def _rows(exchanged: Sequence[Exchanged]) -> list[str]:
    (done,) = WholeExchanges(exchanged).rows(set())
    return done.details.decode().splitlines()


def _arrays(ranks: int, *shape: int) -> list[Array]:
    return [DRAW.normal(size=shape).astype(np.float32) for _ in range(ranks)]


def _all_reduce(brought: Sequence[Array]) -> list[Any]:
    total = np.sum(brought, axis=0, dtype=np.float32)
    return [([each], [total.copy()]) for each in brought]


def _all_gather(brought: Sequence[Array]) -> list[Any]:
    return [([HIDDEN, each], [[part.copy() for part in brought], each]) for each in brought]


def _all_gather_into(brought: Sequence[Array]) -> list[Any]:
    return [([HIDDEN, each], [np.concatenate(brought), each]) for each in brought]


def _broadcast(brought: Sequence[Array]) -> list[Any]:
    return [([each, _number(1)], [brought[1].copy(), _number(1)]) for each in brought]


def _reduce(brought: Sequence[Array]) -> list[Any]:
    total = np.sum(brought, axis=0, dtype=np.float32)
    return [
        ([each, _number(0)], [total.copy() if rank == 0 else each, _number(0)])
        for rank, each in enumerate(brought)
    ]


def _reduce_scatter(brought: Sequence[Array]) -> list[Any]:
    total = np.split(np.sum(brought, axis=0, dtype=np.float32), len(brought))
    return [([HIDDEN, each], [total[rank].copy(), each]) for rank, each in enumerate(brought)]


def _reduce_scatter_list(brought: Sequence[Array]) -> list[Any]:
    parts = [np.split(each, len(brought)) for each in brought]
    return [
        (
            [HIDDEN, parts[rank]],
            [np.sum([each[rank] for each in parts], axis=0, dtype=np.float32), parts[rank]],
        )
        for rank in range(len(brought))
    ]


def _all_to_all_single(brought: Sequence[Array]) -> list[Any]:
    parts = [np.split(each, len(brought)) for each in brought]
    return [
        ([HIDDEN, each], [np.concatenate([part[rank] for part in parts]), each])
        for rank, each in enumerate(brought)
    ]


def _all_to_all(brought: Sequence[Array]) -> list[Any]:
    parts = [np.split(each, len(brought)) for each in brought]
    return [
        ([HIDDEN, parts[rank]], [[each[rank].copy() for each in parts], parts[rank]])
        for rank in range(len(brought))
    ]


def _gather(brought: Sequence[Array]) -> list[Any]:
    return [
        ([each, HIDDEN], [each, [part.copy() for part in brought] if rank == 0 else None])
        for rank, each in enumerate(brought)
    ]


def _scatter(brought: Sequence[Array]) -> list[Any]:
    return [
        (
            [HIDDEN, list(brought) if rank == 0 else None, _number(0)],
            [brought[rank].copy(), None, _number(0)],
        )
        for rank in range(len(brought))
    ]


def _functional(make: Callable[[Sequence[Array]], list[Any]]) -> Any:
    """Return what makes the records of a functional collective, which gives a tensor of its own."""

    def made(brought: Sequence[Array]) -> list[Any]:
        return [([each], [gave[0]]) for each, (_, gave) in zip(brought, make(brought), strict=True)]

    return made


COLLECTIVES: dict[str, Callable[[Sequence[Array]], list[Any]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "all_gather_into_tensor": _all_gather_into,
    "all_gather_single": _all_gather_into,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "reduce_scatter_tensor": _reduce_scatter,
    "reduce_scatter_single": _reduce_scatter,
    "reduce_scatter": _reduce_scatter_list,
    "all_to_all_single": _all_to_all_single,
    "all_to_all": _all_to_all,
    "gather": _gather,
    "scatter": _scatter,
    "functional.all_reduce": _functional(_all_reduce),
    "functional.all_gather_tensor": _functional(_all_gather_into),
    "functional.reduce_scatter_tensor": _functional(_reduce_scatter),
    "functional.all_to_all_single": _functional(_all_to_all_single),
}


def _first_array(values: Sequence[Any]) -> Array:
    for each in values:
        if isinstance(each, np.ndarray):
            return each
        if isinstance(each, list):
            return _first_array(each)
    raise AssertionError("no array")


@pytest.mark.parametrize("operation", COLLECTIVES)
def test_what_a_collective_makes_of_its_parts_is_right(tmp_path: Path, operation: str) -> None:
    ranks = COLLECTIVES[operation](_arrays(4, 8, 3))
    verdict, each = _verdicts(_exchanged(tmp_path, operation, ranks))
    assert verdict is Verdict.PASS
    assert set(each) == {"pass"}


@pytest.mark.parametrize("operation", COLLECTIVES)
def test_a_thousandth_more_in_one_element_of_one_rank_is_wrong(
    tmp_path: Path, operation: str
) -> None:
    ranks = COLLECTIVES[operation](_arrays(4, 8, 3))
    output = list(ranks[0][1])
    if operation == "gather":
        output = output[1:]
    _first_array(output).reshape(-1)[1] *= np.float32(1.001)
    verdict, each = _verdicts(_exchanged(tmp_path, operation, ranks))
    assert verdict is Verdict.ERROR
    assert each.count("error") == 1


@pytest.mark.parametrize(
    ("operation", "made"),
    [
        ("RedOpType.MAX", lambda some: np.max(some, axis=0)),
        ("RedOpType.MIN", lambda some: np.min(some, axis=0)),
        ("RedOpType.AVG", lambda some: np.mean(some, axis=0, dtype=np.float32)),
        ("RedOpType.PRODUCT", lambda some: np.prod(some, axis=0, dtype=np.float32)),
    ],
)
def test_other_reductions_than_sums_are_recomputed(
    tmp_path: Path, operation: str, made: Callable[[Sequence[Array]], Array]
) -> None:
    brought = _arrays(3, 5)
    named = {"op": _text(operation)}
    right = [([each], [made(brought), _text(operation)]) for each in brought]
    assert _verdicts(_exchanged(tmp_path / "a", "all_reduce", right, named))[0] is Verdict.PASS
    summed = [([each], [np.sum(brought, axis=0), _text(operation)]) for each in brought]
    assert _verdicts(_exchanged(tmp_path / "b", "all_reduce", summed, named))[0] is Verdict.ERROR


@pytest.mark.parametrize("ranks", [2, 7, 64])
def test_any_order_of_a_sum_is_right_however_much_cancels(tmp_path: Path, ranks: int) -> None:
    brought = [
        each * np.float32(10.0 ** (rank % 5)) for rank, each in enumerate(_arrays(ranks, 50))
    ]
    brought.append(-np.sum(brought[:-1], axis=0, dtype=np.float32))
    shuffled = [brought[at] for at in DRAW.permutation(len(brought))]
    total = np.zeros(50, np.float32)
    for each in shuffled:
        total = total + each
    records = [([each], [total.copy()]) for each in brought]
    assert _verdicts(_exchanged(tmp_path, "all_reduce", records))[0] is Verdict.PASS


def _buckets(brought: Sequence[Sequence[Array]]) -> list[Any]:
    means = [np.mean(each, axis=0, dtype=np.float32) for each in zip(*brought, strict=True)]
    return [([list(each)], [[one.copy() for one in means]]) for each in brought]


def test_the_means_of_a_bucket_are_recomputed_gradient_by_gradient(tmp_path: Path) -> None:
    brought = [[*_arrays(1, 4, 3), *_arrays(1, 5)] for _ in range(3)]
    named = {"op": _text("RedOpType.AVG")}
    right = _buckets(brought)
    right[2][0][0].append(None)  # this rank has not used a parameter
    right[2][1][0].append(brought[0][0])
    told = _exchanged(tmp_path / "a", "ddp_all_reduce", right, named)
    assert _verdicts(told)[0] is Verdict.PASS
    wrong = _buckets(brought)
    wrong[1][1][0][1] = brought[1][1]  # not reduced
    told = _exchanged(tmp_path / "b", "ddp_all_reduce", wrong, named)
    verdict, each = _verdicts(told)
    assert (verdict, each) == (Verdict.ERROR, ["pass", "error", "pass"])
    assert [row.split(",")[4] for row in _rows(told)] == ["output.0.0", "output.0.1", "output.0.0"]
    # A hook of the script may give anything.
    hooked = _exchanged(tmp_path / "c", "ddp_all_reduce", wrong)
    assert _verdicts(hooked)[0] is Verdict.SKIP


def test_a_broadcast_of_several_tensors_is_that_of_each(tmp_path: Path) -> None:
    brought = [_arrays(2, 4) for _ in range(2)]
    gave = [[each.copy() for each in brought[1]] for _ in range(2)]
    ranks = [([list(some)], [given]) for some, given in zip(brought, gave, strict=True)]
    named = {"src": _number(1)}
    told = _exchanged(tmp_path / "a", "ddp_broadcast", ranks, named)
    assert _verdicts(told) == (Verdict.PASS, ["pass", "pass"])
    gave[0][1][2] += 1.0
    told = _exchanged(tmp_path / "b", "ddp_broadcast", ranks, named)
    assert _verdicts(told) == (Verdict.ERROR, ["error", "pass"])


def test_integers_must_agree_to_the_last_one(tmp_path: Path) -> None:
    brought = [np.arange(4, dtype=np.int64) + 2**60 for _ in range(2)]
    right = [([each], [brought[0] + brought[1]]) for each in brought]
    assert (
        _verdicts(_exchanged(tmp_path / "a", "all_reduce", right, dtype="int64"))[0] is Verdict.PASS
    )
    wrong = [([each], [brought[0] + brought[1] + 1]) for each in brought]
    assert (
        _verdicts(_exchanged(tmp_path / "b", "all_reduce", wrong, dtype="int64"))[0]
        is Verdict.ERROR
    )


def test_a_sum_of_half_precision_that_overflows_on_its_way_is_not_judged(tmp_path: Path) -> None:
    brought = [np.array([6e4, 1.0], np.float16), np.array([6e4, 2.0], np.float16)]
    brought.append(np.array([-6e4, 3.0], np.float16))
    got = np.array([np.inf, 6.0], np.float16)
    records = [([each], [got.copy()]) for each in brought]
    verdict, _ = _verdicts(_exchanged(tmp_path, "all_reduce", records, dtype="float16"))
    assert verdict is Verdict.PASS


def test_nan_that_the_collective_made_is_wrong_and_one_that_a_rank_brought_is_not(
    tmp_path: Path,
) -> None:
    brought = _arrays(2, 4)
    made = [([each], [brought[0] + brought[1]]) for each in brought]
    made[1][1][0][2] = np.nan
    assert _verdicts(_exchanged(tmp_path / "a", "all_reduce", made))[0] is Verdict.ERROR
    brought[0][1] = np.nan
    passed = [([each], [brought[0] + brought[1]]) for each in brought]
    assert _verdicts(_exchanged(tmp_path / "b", "all_reduce", passed))[0] is Verdict.PASS


def test_unequal_parts_of_an_all_to_all_are_those_that_the_ranks_said(tmp_path: Path) -> None:
    first, second = np.arange(5, dtype=np.float32), np.arange(10, 13, dtype=np.float32)
    sizes = [[_number(1), _number(4)], [_number(2), _number(1)]]
    records = [
        ([HIDDEN, first, None, sizes[0]], [np.concatenate([first[:1], second[:2]]), first]),
        ([HIDDEN, second, None, sizes[1]], [np.concatenate([first[1:], second[2:]]), second]),
    ]
    assert _verdicts(_exchanged(tmp_path, "all_to_all_single", records))[0] is Verdict.PASS


def test_what_a_rank_received_is_what_the_other_one_sent(tmp_path: Path) -> None:
    sent, records = _arrays(1, 6)[0], []
    for operation, rank, got, gave in (
        ("send", 0, [sent, _number(1)], [sent, _number(1)]),
        ("recv", 1, [None, _number(0)], [sent * np.float32(1.01), _number(0)]),
    ):
        ((one),) = _exchanged(tmp_path / operation, operation, [(got, gave)])
        label = f"step0/rank{rank}"
        records.append(Exchanged(label, "0", rank, one.key, 0, one.meeting, one.raw, one.folder))
    assert _verdicts(records)[0] is Verdict.ERROR


def test_the_source_of_a_scatter_may_be_told_by_its_place_in_the_group(tmp_path: Path) -> None:
    brought = _arrays(2, 4)
    records = [
        ([HIDDEN, list(brought) if rank == 1 else None], [each.copy(), None])
        for rank, each in enumerate(brought)
    ]
    named = {"group_src": _number(1)}
    assert _verdicts(_exchanged(tmp_path, "scatter", records, named))[0] is Verdict.PASS


def test_a_collective_whose_ranks_are_not_all_there_is_no_piece(tmp_path: Path) -> None:
    exchanged = _exchanged(tmp_path, "all_reduce", _all_reduce(_arrays(3, 4)))
    assert WholeExchanges(exchanged[:2]).names == []
    assert len(WholeExchanges(exchanged).names) == 1


def test_a_file_that_is_missing_leaves_its_collective_unjudged(tmp_path: Path) -> None:
    exchanged = _exchanged(tmp_path, "all_reduce", _all_reduce(_arrays(2, 4)))
    (exchanged[1].folder / "all_reduce.input.0.npy").unlink()
    (done,) = WholeExchanges(exchanged).rows(set())
    assert done.verdict is Verdict.SKIP
    assert b"all_reduce.input.0.npy" in done.row


def test_a_table_of_ranks_is_read_as_it_was_written(tmp_path: Path) -> None:
    ranks = _all_reduce(_arrays(2, 4, 3))
    ranks[1][1][0][2, 1] += 1.0
    (done,) = WholeExchanges(_exchanged(tmp_path, "all_reduce", ranks)).rows(set())
    path = tmp_path / "ranks.csv"
    path.write_bytes(header(EXCHANGE_TABLES.details) + done.details)
    found = read_recomputed(path)
    (right,), (wrong,) = found["step0/rank0"], found["step0/rank1"]
    assert not right.is_wrong
    assert (wrong.is_wrong, wrong.item, wrong.where) == (True, "output.0", "[2, 1]")
    assert wrong.message.startswith("1 of 12 elements are not the SUM of 2 ranks")
