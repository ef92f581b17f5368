"""Sample arguments of torch's functions, from the table that torch tests itself with (OpInfo).

Goes out: for each name, as a dump has it, a few samples. The table ships with torch, but imports
what only torch's own tests use; of that, `expecttest` is stood in for.
"""

import itertools
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from coverage_records import Sample

_SAMPLES_EACH = 3
_DTYPES = (torch.float32, torch.int64, torch.complex64, torch.bool)


@cache
def opinfo_samples(names: frozenset[str], drawn: int = 16) -> dict[str, list[Sample]]:
    """Return the samples of these functions, Tensor methods and in-place forms that are in OpInfo, the
    good ones of the first `drawn` of each."""
    found: dict[str, list[Sample]] = {}
    for op in operators_of_torch():
        wanted = [name for name in _names(op) if name in names]
        if not wanted:
            continue
        dtypes = op.supported_dtypes("cpu")
        dtype = next((dtype for dtype in _DTYPES if dtype in dtypes), None)
        if dtype is None:
            continue
        for sample in _samples(op, dtype, drawn):
            for name in wanted:
                found.setdefault(name, []).append(sample)
    return found


def operators_of_torch() -> list[Any]:
    """Return torch's own descriptions of its operators, which make samples of them."""
    stand_in: Any = types.ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase
    sys.modules.setdefault("expecttest", stand_in)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_utils
        from torch.testing._internal.common_methods_invocations import op_db
    # Their import forbids the whole process to set the flags of torch.backends.
    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
    # It looks through the whole stack for a unittest.TestCase at each sample, and finds none.
    vars(common_utils)["extract_test_fn"] = lambda: None
    return list(op_db)


def _names(op: Any) -> Iterator[str]:
    """Yield what a dump calls an operator, its aliases, its methods and its in-place forms."""
    for form in (op, *op.aliases):
        short = form.name.rsplit(".", 1)[-1]
        inner, functional = form.name, form.name.startswith("nn.functional.")
        yield f"Functional.{short}" if functional else f"Torch.{inner}"
        # What takes a tensor first can be a method, an in-place method and an in-place function.
        yield f"Tensor.{short}"
        if not short.endswith("_"):
            yield f"Tensor.{short}_"
            yield f"Functional.{short}_" if functional else f"Torch.{inner}_"
    for variant in (op.operator_variant, op.inplace_operator_variant):
        if variant is not None:
            plain = variant.__name__.strip("_")
            yield f"Tensor.__{plain}__"
            yield f"Tensor.__r{plain}__"


def _samples(op: Any, dtype: torch.dtype, drawn: int) -> Iterator[Sample]:
    """Yield samples, of so many drawn, that make something: an operator on nothing would pass whatever
    it did."""
    wants_grad = op.supports_autograd and dtype.is_floating_point
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = list(itertools.islice(op.sample_inputs("cpu", dtype, wants_grad), drawn))
        except (IndexError, RuntimeError):  # samples for CUDA alone
            return
        calls = (sampled(op.op, (each.input, *each.args), each.kwargs) for each in made)
        yield from itertools.islice(filter(None, calls), _SAMPLES_EACH)


def sampled(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Sample | None:
    """Return a sample with the outputs of its call, None where it makes nothing to compare."""
    try:
        outputs = list(flat(function(*args, **kwargs)))
    except (RuntimeError, LookupError, AssertionError, TypeError, ValueError):
        return None
    tensors = [out for out in outputs if torch.is_tensor(out)]
    if tensors and not any(out.numel() for out in tensors):
        return None
    grads = [
        out.detach() if torch.is_tensor(out) and out.requires_grad else None for out in outputs
    ]
    return Sample(args, dict(kwargs), grads if any(g is not None for g in grads) else None)


def flat(value: Any) -> Iterator[Any]:
    """Yield the leaves of what a function returns."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from flat(item)
    else:
        yield value
