"""Odd records of every function of torch: whatever a dump says, no row is a failure of ray_precheck.

Each record is made of a sample that passes, with one thing changed in it: a tensor that is empty, has
no dimension or another dtype, a number that is null, text, a fraction or out of range.
"""

import faulthandler
import hashlib
import json
import math
import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
from coverage_records import Sample, payload
from coverage_samples import opinfo_samples
from coverage_torch_recipes import recipes
from records import call, tensor

from ray_precheck.check.checker import Checker
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import TaskPayload
from scripts.coverage.status import TORCH, statuses

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

# Of all changes that fit a sample, so many are tried, chosen by the name.
CHANGES_EACH = 4
Json = Any


def _is_tensor(element: Json) -> bool:
    return isinstance(element, dict) and "shape" in element


def _is_number(element: Json) -> bool:
    return isinstance(element, dict) and element.get("type") in ("int", "float", "bool")


TENSORS: dict[str, Callable[[Json], Json]] = {
    "empty": lambda tensor: {
        **tensor,
        "shape": [0] * len(tensor["shape"]),
        "Max": None,
        "Min": None,
    },
    "first extent 0": lambda tensor: {**tensor, "shape": [0, *tensor["shape"][1:]], "Max": None},
    "no dimension": lambda tensor: {**tensor, "shape": []},
    "(0, 0)": lambda tensor: {**tensor, "shape": [0, 0]},
    "one more": lambda tensor: {**tensor, "shape": [1, *tensor["shape"]]},
    "complex": lambda tensor: {**tensor, "dtype": "torch.complex64"},
    "whole": lambda tensor: {**tensor, "dtype": "torch.int64"},
    "bool": lambda tensor: {**tensor, "dtype": "torch.bool", "Max": True, "Min": False},
    "NaN": lambda tensor: {**tensor, "Max": float("nan"), "Min": float("nan")},
    "infinite": lambda tensor: {**tensor, "Max": float("inf"), "Min": float("-inf")},
    "null": lambda _: None,
}
NUMBERS: dict[str, Callable[[Json], Json]] = {
    "null": lambda _: None,
    "text": lambda _: {"type": "str", "value": "x"},
    "fraction": lambda _: {"type": "float", "value": 1.5},
    "below": lambda _: {"type": "int", "value": -9},
    "yes": lambda _: {"type": "bool", "value": True},
    "list": lambda number: [number, number],
}


def _places(element: Json, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Json]]:
    """Yield each tensor and number of a record's arguments with its path."""
    if _is_tensor(element) or _is_number(element):
        yield path, element
    elif isinstance(element, list | dict):
        items = element.items() if isinstance(element, dict) else enumerate(element)
        for key, item in items:
            yield from _places(item, (*path, key))


def _changed(record: Json, path: tuple[Any, ...], change: Callable[[Json], Json]) -> Json:
    """Return a copy of a record in which the element at a path is changed."""
    copy = json.loads(json.dumps(record))
    *before, last = path
    holder = copy
    for key in before:
        holder = holder[key]
    holder[last] = change(holder[last])
    return copy


def odd_payloads(name: str, sample: Sample) -> Iterator[tuple[str, TaskPayload]]:
    """Yield some odd records of a call, each with what is odd."""
    plain = payload(name, sample, "pytorch")
    record = json.loads(plain.forward or b"{}")
    arguments = {key: record[key] for key in ("input_args", "input_kwargs")}
    found = [
        (f"{'.'.join(map(str, path))} {what}", path, change)
        for path, element in _places(arguments)
        for what, change in (TENSORS if _is_tensor(element) else NUMBERS).items()
    ]
    found.sort(key=lambda item: hashlib.blake2b(f"{name} {item[0]}".encode()).digest())
    for what, path, change in found[:CHANGES_EACH]:
        raw = json.dumps(_changed(record, path, change)).encode()
        yield what, replace(plain, forward=raw)


WHOLE = tensor(3, 3, dtype="int64", low=0, high=2)
# What failed once.
KNOWN: dict[str, TaskPayload] = {
    "eig": call("Torch.linalg.eig", tensor(0, 0)),
    "eigvals": call("Torch.linalg.eigvals", tensor(2, 0, 0)),
    "dim null": call("Tensor.scatter_", tensor(3, 3), None, WHOLE, tensor(3, 3)),
    "dim text": call(
        "Torch.repeat_interleave", tensor(3, 3), tensor(3, dtype="int64"), "x", output=tensor(3, 5)
    ),
    "dim fraction": call(
        "Torch.repeat_interleave", tensor(3, 3), tensor(3, dtype="int64"), 1.5, output=tensor(3, 5)
    ),
    "complex mean": call("Torch.normal", tensor(3, 4, dtype="complex64"), tensor(3, 4, low=0.1)),
    "endless trials": call(
        "Torch.binomial", tensor(4, low=-math.inf, high=math.inf), tensor(4, low=0.1, high=0.9)
    ),
    "no draws": call("Functional.gumbel_softmax", tensor(0, 0), grads=[tensor(0, 0)]),
}


@pytest.mark.parametrize("case", KNOWN)
def test_what_failed_once_is_skipped_with_a_reason(torch_checker: Checker, case: str) -> None:
    result = torch_checker.check(KNOWN[case])
    assert result.forward is Verdict.SKIP
    assert result.message
    assert "ray_precheck failed" not in result.message


def _all_payloads(checker: Checker) -> list[tuple[str, TaskPayload]]:
    samples, own = opinfo_samples(drawn=2), recipes()
    found = []
    for namespace in TORCH:
        for status in statuses(namespace, checker.bench):
            name = namespace.api(status.name).type_name
            made = [*own.get(name, []), *samples.get(name, [])][:1] if status.is_covered else []
            found += [odd for sample in made for odd in odd_payloads(name, sample)]
    return found


def _check(checker: Checker, payloads: list[TaskPayload], answers: Connection) -> None:
    """Check calls one after the other in a child process; send the message of each."""
    faulthandler.disable()  # a kernel that dies is expected here
    torch.set_num_threads(1)
    for odd in payloads:
        answers.send(checker.check(odd).message)


def _messages(checker: Checker, payloads: list[TaskPayload]) -> Iterator[str]:
    """Yield the message of each call, "crash" where a kernel of torch ends the process."""
    context = multiprocessing.get_context("fork")
    done = 0
    while done < len(payloads):
        mine, theirs = context.Pipe(duplex=False)
        child = context.Process(target=_check, args=(checker, payloads[done:], theirs))
        child.start()
        theirs.close()
        try:
            while True:
                yield mine.recv()
                done += 1
        except EOFError:
            child.join()
        if done < len(payloads):
            yield "crash"
            done += 1


@pytest.mark.timeout(900)
@pytest.mark.parametrize("each", [10, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_no_odd_record_is_a_failure_of_ray_precheck(torch_checker: Checker, each: int) -> None:
    """`each` so many-th record is tried."""
    odd = _all_payloads(torch_checker)[::each]
    assert len(odd) > 4000 // each
    messages = list(_messages(torch_checker, [payload for _, payload in odd]))
    assert len(messages) == len(odd)
    failed = [
        (payload.name, what, message)
        for (what, payload), message in zip(odd, messages, strict=True)
        if "ray_precheck failed on this record" in message
    ]
    assert failed == []
    # Some kernels of torch die of odd inputs. A run blames them on the record that did it.
    assert messages.count("crash") < len(odd) / 100
