"""The nodes at which a culprit begins to differ, and a model of these nodes alone.

Comes in: a process that has the model, and a finding. Goes out: `FoundNodes`. Called by `target`.

The graph is saved as the smallest wrong set of optimizers leaves it, and the values of that graph are made
outputs: made outputs of the user's own model, they would change what is looked at, as fusions no longer match
where a value is an output. It is run as it stands, beside the user's model with everything off.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.commands.bisect.measure import OutputMeasure
from ray_precheck.commands.bisect.target import OutputRow
from ray_precheck.commands.bisect.targets.onnx.nodes import (
    Beginning,
    OnnxGraph,
    beginning_at,
    beginnings,
    parse_graph,
)
from ray_precheck.commands.bisect.trial_process import TrialProcess
from ray_precheck.searching.bisection import RungFinding

# So many places of one culprit are named and cropped.
_MOST_PLACES = 3


@dataclass(frozen=True, slots=True)
class CroppedModel:
    """A model of the guilty nodes alone, and its inputs as an .npz file."""

    nodes: str
    model: Path
    inputs: Path


@dataclass(frozen=True, slots=True)
class FoundNodes:
    """What was found of a finding's nodes: sentences, and cropped models."""

    said: tuple[str, ...]
    models: tuple[CroppedModel, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSearch:
    """Looks for nodes in a process that has the model, with the `metric` and `tolerance` of the trials."""

    process: TrialProcess
    scratch: Path
    metric: str
    tolerance: float | None
    timeout_s: float

    def of_culprit(self, finding: RungFinding) -> FoundNodes:
        """Compare the graph with the smallest set on with the model with all off."""
        rung = finding.rung
        off = [name for name in rung.members if name not in finding.sets[0]]
        switches = {"rung": rung.name, "on": sorted(finding.sets[0]), "off": off}
        honest, problem = self._values({"rung": "off", "on": [], "off": []}, "")
        changed = None
        if honest is not None:
            changed, problem = self._values(switches, str(self.scratch / f"{_word(switches)}.onnx"))
        if honest is None or changed is None:
            return FoundNodes((f"its nodes were not found: {problem}",))
        rows = self._rows(changed["outputs"], honest["outputs"], changed["graph_outputs"])
        distances = {name: _distance(row) for name, row in rows.items()}
        graphs = parse_graph(honest), parse_graph(changed)
        found = beginnings(*graphs, distances, self._limit)
        said, models = [], []
        if not (honest["is_same"] and changed["is_same"]):
            said.append(
                "looking at the values of the graph changes its outputs: its nodes are a guess"
            )
        if not found:
            said.append("its nodes were not found: no value that both graphs have differs")
        for number, each in enumerate(found[:_MOST_PLACES]):
            parts = _parts_with(each, graphs, distances)
            sentence, model = self._cropped(parts, switches, honest["outputs"], number)
            row = rows[each.value]
            how = f"{each.value} at {row.index} differs by {_times(each.distance)}"
            said.append(f"{row.message or how}: {sentence}")
            models += [model] if model is not None else []
        if len(found) > _MOST_PLACES:
            said.append(f"and at {len(found) - _MOST_PLACES} more places")
        return FoundNodes(tuple(said), tuple(models))

    def of_native_operators(self) -> FoundNodes:
        """Hold each node of the model, with everything off, against onnx's own implementation of it."""
        honest, problem = self._values({"rung": "off", "on": [], "off": []}, "")
        if honest is None:
            return FoundNodes((f"its nodes were not looked at: {problem}",))
        out = str(self.scratch / "reference.npz")
        request = {"kind": "reference", "values": honest["outputs"], "out": out}
        reply = self.process.ask(request, self.timeout_s)
        if reply.answer is None:
            return FoundNodes(
                (f"its nodes were not held against onnx's reference: {reply.reason}",)
            )
        rows = self._rows(honest["outputs"], out, ())
        nodes = parse_graph(honest).nodes
        said = []
        for node in nodes:
            worst = max(
                (_distance(rows[name]) for name in node.outputs if name in rows), default=0.0
            )
            if not worst <= self._limit:
                said.append(
                    f"a native operator: {node.title} gives another result than onnx's reference for the"
                    f" same inputs: {_times(worst)}"
                )
        if len(said) > _MOST_PLACES:
            said[_MOST_PLACES:] = [f"and {len(said) - _MOST_PLACES} more"]
        if not said:
            said.append(
                f"each of the {len(nodes)} nodes gives what onnx's reference gives for the same inputs: the"
                " golden outputs are of another model or of other inputs, or the interface treats them"
                " otherwise"
            )
        if reply.answer["problems"]:
            node, why = next(iter(reply.answer["problems"].items()))
            said.append(
                f"{len(reply.answer['problems'])} nodes have no reference, first {node}: {why}"
            )
        return FoundNodes(tuple(said))

    @property
    def _limit(self) -> float:
        return 1.0 if self.tolerance is None else self.tolerance

    def _values(
        self, switches: Mapping[str, Any], saved: str
    ) -> tuple[Mapping[str, Any] | None, str]:
        out = str(self.scratch / f"{_word(switches)}.values.npz")
        request = {"kind": "values", **switches, "out": out, "saved": saved}
        reply = self.process.ask(request, self.timeout_s)
        return reply.answer, reply.reason

    def _rows(self, tested: str, golden: str, always: Sequence[str]) -> dict[str, OutputRow]:
        """Return how the values differ that both files have in one shape and dtype, and those of `always`."""
        measure = OutputMeasure(Path(golden), {}, self.metric, self.tolerance)
        found: dict[str, OutputRow] = {}
        with np.load(tested) as ours, np.load(golden) as theirs:
            for name in set(theirs.files) & set(ours.files):
                one, other = ours[name], theirs[name]
                if name in always or (one.shape == other.shape and one.dtype == other.dtype):
                    (found[name],) = measure.compare({name: one}, {name: other}).outputs
        return found

    def _cropped(
        self,
        candidates: Sequence[Beginning],
        switches: Mapping[str, Any],
        values: str,
        number: int,
    ) -> tuple[str, CroppedModel | None]:
        """Return what is said of the first of these parts of the model that shows the difference alone, else
        of the first one."""
        told = ""
        kept: CroppedModel | None = None
        for attempt, each in enumerate(candidates):
            path = self.scratch / f"{_word(switches)}.part{number}.{attempt}.onnx"
            model = CroppedModel(each.replaced, path, path.with_suffix(".npz"))
            distance, problem = self._alone(each, model, switches, values)
            if distance is None:
                told = told or f"{each.replaced}; alone they were not tried: {problem}"
                continue
            if not distance <= self._limit:
                return f"{each.replaced}; alone they show it", model
            if kept is None:
                kept = model
                told = f"{each.replaced}; alone they do not show it"
        return told, kept

    def _alone(
        self, part: Beginning, model: CroppedModel, switches: Mapping[str, Any], values: str
    ) -> tuple[float | None, str]:
        """Crop the model, run that with the culprit and with everything off; return how far they differ."""
        request = {
            "kind": "extract",
            "inputs": list(part.inputs),
            "results": [part.value],
            "values": values,
            "out": str(model.model),
            "inputs_out": str(model.inputs),
        }
        reply = self.process.ask(request, self.timeout_s)
        if reply.answer is None:
            return None, reply.reason
        outs: list[str] = []
        for each in (switches, {"rung": "off", "on": [], "off": []}):
            out = str(model.model.with_suffix(f".{_word(each)}.npz"))
            files = {"model": str(model.model), "inputs": str(model.inputs), "out": out}
            reply = self.process.ask({"kind": "run", **each, **files}, self.timeout_s)
            if reply.answer is None:
                return None, reply.reason
            outs.append(out)
        return _distance(self._rows(outs[0], outs[1], [part.value])[part.value]), ""


def _parts_with(
    found: Beginning, graphs: tuple[OnnxGraph, OnnxGraph], distances: Mapping[str, float]
) -> list[Beginning]:
    """Return a beginning and wider parts of the model before it, the smallest first.

    What makes a difference large is not always where it comes from, and a fusion may need what stands further
    back: back to where the bits are equal, and to the model's inputs.
    """
    equal = [name for name, distance in distances.items() if distance == 0.0]
    parts = [found]
    for stops in (equal, ()):
        part = beginning_at(found.value, *graphs, distances, stops)
        if part.nodes != parts[-1].nodes:
            parts.append(part)
    return parts


def _word(switches: Mapping[str, Any]) -> str:
    """Return the level of a rung: a short name for files, as each level is searched once."""
    return str(switches["rung"]).partition(" ")[0]


def _distance(row: OutputRow) -> float:
    return float("inf") if row.distance is None else row.distance


def _times(distance: float) -> str:
    return f"{distance:.3g} times what honest runs differ by"
