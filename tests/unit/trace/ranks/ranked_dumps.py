"""Small captures of several ranks that tests write by hand."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.numerics.sketch import sketch
from ray_precheck.trace.ranks.checks import check_rank_traces
from ray_precheck.trace.ranks.dumps import OpenDumps
from ray_precheck.trace.ranks.nouns import RankFinding, RanksOutcome
from ray_precheck.trace.ranks.packing import Unpacker, pack
from ray_precheck.trace.ranks.summary import summarize

Records = Mapping[str, Mapping[str, Any]]
GROUP = {"type": "torch.ProcessGroup", "group_ranks": [0, 1]}


class Writer:
    """Makes elements of tensors, with sketches, and writes the dump of a rank."""

    def __init__(self, folder: Path, rank: int, step: int = 0) -> None:
        self.path = folder / f"step{step}" / f"rank{rank}" / "dump.json"
        self.rank, self.step = rank, step
        self._sketches: list[Any] = []

    def tensor(self, values: Any, **more: Any) -> dict[str, Any]:
        """The element of a tensor."""
        array = np.asarray(values)
        is_float = array.dtype.kind == "f"
        array = array.astype(np.float32 if is_float else np.int64)
        flat = array.reshape(-1).astype(np.float64)
        self._sketches.append(np.asarray(sketch(flat.astype(np.float32)), "<f4"))
        return {
            "type": "torch.Tensor",
            "dtype": "torch.float32" if is_float else "torch.int64",
            "shape": list(array.shape),
            "Max": flat.max(),
            "Min": flat.min(),
            "Mean": flat.mean() if is_float else None,
            "Norm": float(np.linalg.norm(flat)) if is_float else None,
            "requires_grad": is_float,
            "sketch": len(self._sketches) - 1,
            **more,
        }

    def call(self, inputs: Sequence[Any], outputs: Sequence[Any], **more: Any) -> dict[str, Any]:
        """A forward record."""
        return {
            "input_args": list(inputs), "input_kwargs": {}, "output": list(outputs), **more
        }  # fmt: skip

    def update(
        self, named: Mapping[str, tuple[Any, Any, Any]], rate: float = 0.1
    ) -> dict[str, Any]:
        """The record of an optimizer: before, gradient and after of each parameter, by name."""
        words = ("params", "grads")
        group = {
            "lr": {"type": "float", "value": rate},
            "names": [{"type": "str", "value": name} for name in named],
        } | {
            word: [self.tensor(each[place]) for each in named.values()]
            for place, word in enumerate(words)
        }
        after = {"params": [self.tensor(each[2]) for each in named.values()]}
        return {"input_args": [group], "input_kwargs": {}, "output": [after]}

    def write(self, records: Records) -> None:
        """Write the dump."""
        self.path.parent.mkdir(parents=True)
        header = {"task": "statistics", "level": "L1", "framework": "pytorch"}
        self.path.write_text(json.dumps({**header, "data": records}), encoding="utf-8")
        np.save(self.path.with_name("sketches.npy"), np.array(self._sketches, "<f4"))


def outcome_of(writers: Sequence[Writer], axes: Sequence[tuple[str, int]] = ()) -> RanksOutcome:
    """Check dumps that were written; their summaries go through text, as those of workers do."""
    unpacker = Unpacker()
    summaries = [
        unpacker.summary(pack(summarize(each.path, each.step, each.rank, each.path.parent.name)))
        for each in writers
    ]
    dumps = OpenDumps({(each.step, each.rank): each.path for each in writers})
    found = check_rank_traces(summaries, axes, dumps)
    dumps.close()
    return found


def found_in(
    writers: Sequence[Writer], axes: Sequence[tuple[str, int]] = ()
) -> tuple[RankFinding, ...]:
    """Return the findings in dumps that were written."""
    return outcome_of(writers, axes).findings
