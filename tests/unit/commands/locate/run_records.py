"""Records of a made-up run, as a walk gets them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ray_precheck.commands.locate.walk.nouns import (
    GoldenRun,
    Located,
    OwnError,
    ValueEvidence,
    WalkState,
)
from ray_precheck.commands.locate.walk.walk import RootWalk
from ray_precheck.dump.scan import ByteRange
from ray_precheck.trace.flow import FlowRecord, flow_of
from ray_precheck.trace.items import Item, items_of
from ray_precheck.trace.side import entry_of

WHERE = ByteRange(0, 0)


def tensor(
    number: float,
    *,
    shape: Sequence[int] = (4, 4),
    dtype: str = "torch.float32",
    norm: float | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return an element whose statistics tell it from those of other numbers."""
    count = math.prod(shape)
    return {
        "type": "torch.Tensor",
        "dtype": dtype,
        "shape": list(shape),
        "Max": number,
        "Min": -number / 2,
        "Mean": number / 8,
        "Norm": number * math.sqrt(count) / 2 if norm is None else norm,
        **more,
    }


def weight(number: float) -> dict[str, Any]:
    return tensor(number, type="torch.nn.parameter.Parameter")


def record(key: str, inputs: Sequence[Any], outputs: Sequence[Any], **kwargs: Any) -> FlowRecord:
    """Return a record; a backward one has its inputs under `input`."""
    raw: dict[str, Any] = {"input_args": list(inputs), "input_kwargs": kwargs}
    if key.endswith(".backward"):
        raw = {"input": list(inputs)}
    raw["output"] = list(outputs)
    return FlowRecord(entry_of(key, WHERE), items_of(raw, key))


class MeasuredForTest:
    """Evidence that a test states: own errors by key, differences by key and path."""

    estimates = False
    sees_elements = True

    def __init__(
        self,
        errors: dict[str, OwnError] | None = None,
        differences: dict[tuple[str, str], float] | None = None,
        *,
        estimates: bool = False,
    ) -> None:
        self.errors = errors or {}
        self.differences = differences or {}
        self.estimates = estimates

    def value(self, key: str, target: Item, golden: Item) -> ValueEvidence:
        return ValueEvidence(self.differences.get((key, target.path), 0.0))

    def own(self, key: str) -> OwnError | None:
        return self.errors.get(key)


def walked(
    target: Sequence[FlowRecord],
    evidence: MeasuredForTest,
    golden: Sequence[FlowRecord] | None = None,
    *,
    draws: Sequence[str] = (),
    is_first_step: bool = True,
    renamed: Mapping[str, str] | None = None,
    has_modules: bool = False,
    modules: Mapping[str, str] | None = None,
    alone: str = "",
) -> Located:
    """Walk through a run; the partner of a record is that of the same key, or the one in `renamed`."""
    run = None
    if golden is not None:
        by_key = {each.entry.key: each for each in golden}
        partners = {each.entry.key: each.entry.key for each in target if each.entry.key in by_key}
        partners |= renamed or {}
        matched = {*partners}, {*partners.values()}
        ours, theirs = (
            frozenset(each.entry.call for each in side)
            - {each.entry.call for each in side if each.entry.key in keys}
            for side, keys in zip((target, golden), matched, strict=True)
        )
        others = frozenset(key.rpartition(".")[0] for key in renamed or {})
        run = GoldenRun(
            by_key,
            lambda: flow_of(golden),
            partners,
            alone=(ours, theirs | {alone}),
            module_of=lambda key: (modules or {}).get(key, ""),
            renamed=others,
            tells_gradients=True,
        )
    state = WalkState(
        flow_of(target),
        evidence,
        run,
        is_first_step,
        lambda call: call.split(".")[1] in draws,
        has_modules=has_modules,
    )
    return RootWalk(state).run(target)
