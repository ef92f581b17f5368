"""The target ONNX Runtime: which optimizer or execution provider changes the result of a model, and at which nodes.

Comes in: a model, inputs, and the right outputs (by default its own with everything off). Goes out: rungs, the
nodes at which a culprit begins to differ, a model of these nodes alone, and the lines that disable the optimizer.
Called by `commands.bisect`.

The rungs are ONNX Runtime's own steps: nothing, execution providers beside the CPU, then the levels basic,
extended, layout and all of the graph's optimizations. Their switches are the optimizers by the names that
`disabled_optimizers` takes.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.commands.bisect.measure import Measure
from ray_precheck.commands.bisect.model_target import (
    Golden,
    ModelOpener,
    asked_of,
    honest_outputs,
    measure_of,
)
from ray_precheck.commands.bisect.target import Lines, Survey, TrialOpener
from ray_precheck.commands.bisect.targets.onnx.inputs import given_inputs, random_inputs
from ray_precheck.commands.bisect.targets.onnx.nodes import (
    Beginning,
    beginnings,
    between,
    parse_graph,
    titles,
)
from ray_precheck.commands.bisect.targets.onnx.options import OnnxConfig
from ray_precheck.commands.bisect.trial_process import TrialProcess, interpreter
from ray_precheck.errors import UsageError
from ray_precheck.foreign import first_line, open_file
from ray_precheck.searching.bisection import Answer, Finding, Kind, Rung, Switch

_INSIDE = Path(__file__).with_name("inside.py")
_LEVELS = {
    "basic": "simplifications of the graph that keep its meaning",
    "extended": "fusions of the CPU and other providers",
    "layout": "other layouts in memory",
    "all": "all that is above",
}
_CONSTANTS = {
    "": "DISABLE_ALL",
    "off": "DISABLE_ALL",
    "providers": "DISABLE_ALL",
    "layout": "ENABLE_LAYOUT",
}
# Providers that every wheel has: the CPU is the last resort of all, and Azure runs only its own operators.
_NO_RUNG = ("CPUExecutionProvider", "AzureExecutionProvider")
_MOST_PLACES = 3


@dataclass(frozen=True, slots=True)
class Place:
    """Where a culprit begins to differ, the model of these nodes alone, and what that one says of it."""

    beginning: Beginning
    model: Path | None
    inputs: Path | None
    said: str


@dataclass(frozen=True, slots=True)
class OnnxFacts:
    """What was found of the model: the settings of its sessions, the golden outputs, and by rung the `places`
    and the sentences on them, which are filled in while it is searched."""

    settings: Mapping[str, Any]
    golden: Golden
    places: dict[str, list[Place]] = field(default_factory=dict)
    said: dict[str, list[str]] = field(default_factory=dict)


class OnnxTarget:
    """ONNX Runtime's optimizers and execution providers."""

    name = "onnx"
    text = "the optimizer, level or execution provider of ONNX Runtime, and the nodes of the model"
    config = OnnxConfig

    def survey(self, config: OnnxConfig, scratch: Path, say: Callable[[str], None]) -> Survey:
        """Load the model, run it with everything off, and ask for the optimizers.

        Raises:
            UsageError: the model, its inputs or the options are wrong.
        """
        with _opened(config.model) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        inputs = scratch / "inputs.npz"
        settings = {
            "model": str(config.model.absolute()),
            "inputs": str(inputs.absolute()),
            "providers": list(config.provider),
            "disabled": list(config.disabled),
        }
        with closing(_process(config, settings, scratch)) as process:
            described = _described(process, config)
            arrays, note = (
                (given_inputs(config.input, described["inputs"]), "")
                if config.input is not None
                else random_inputs(described["inputs"], config.shape)
            )
            np.savez(inputs, **arrays)
            providers = _providers(config, described["providers"])
            settings["providers"] = list(providers)
        # A process of its own: the settings are those of the first one's beginning.
        with closing(_process(config, settings, scratch)) as process:
            foot = Rung("off", title="no optimization, on the CPU")
            golden = honest_outputs(process, foot, scratch, config)
            request = {"kind": "optimizers"}
            asked = asked_of(
                process, request, config.timeout_s, f"{config.model} with all optimizers"
            )
            assert asked.answer is not None
            levels = asked.answer["levels"]
        _require_known(config.disabled, levels, asked.answer["always"], described["onnxruntime"])
        rungs = (foot, *_rungs(levels, providers, config.disabled))
        notes = (f"ONNX Runtime {described['onnxruntime']}", *filter(None, [note]))
        prints = {"onnxruntime": described["onnxruntime"], "model's sha256": digest}
        prints["inputs' sha256"] = hashlib.sha256(
            b"".join(array.tobytes() for array in arrays.values())
        ).hexdigest()
        facts = OnnxFacts(settings, golden)
        return Survey(rungs, notes, prints, facts, is_exact=golden.is_exact)

    def opener(self, config: OnnxConfig, survey: Survey) -> TrialOpener:
        """Return what opens runners of sessions."""
        return ModelOpener(
            _INSIDE,
            survey.facts.settings,
            measure_of(config, survey.facts.golden),
            config.python,
            fail_on=config.fail_on,
            timeout_s=config.timeout_s,
        )

    def further(
        self, config: OnnxConfig, survey: Survey, found: Sequence[Finding], scratch: Path
    ) -> Sequence[Rung]:
        """Find the nodes at which what was found begins to differ; there are no further trials."""
        facts: OnnxFacts = survey.facts
        for finding in found:
            name = finding.rung.name
            if name in facts.said or finding.kind not in (Kind.FOUND, Kind.WRONG_AT_FOOT):
                continue
            facts.said[name], facts.places[name] = [], []
            with closing(_process(config, facts.settings, scratch)) as process:
                search = _NodeSearch(config, facts, process, scratch)
                if finding.kind is Kind.FOUND:
                    search.of_culprit(finding)
                elif name == "off":
                    search.of_native_operators()
        return ()

    def lines(self, config: OnnxConfig, survey: Survey, finding: Finding) -> Lines:
        """Return the nodes of a finding, and the lines that switch the culprit off."""
        facts: OnnxFacts = survey.facts
        said = tuple(facts.said.get(finding.rung.name, ()))
        if finding.kind is not Kind.FOUND or not finding.rung.switches:
            return Lines(said)
        off = [name for name in finding.rung.members if name in finding.cure]
        if finding.rung.name == "providers":
            left = [name for name in survey.facts.settings["providers"] if name not in off]
            python = (
                f"onnxruntime.InferenceSession(path, providers={[*left, 'CPUExecutionProvider']!r})"
            )
            return Lines(said, (("Python", python), ("C++", f"(append no {' or '.join(off)})")))
        return Lines(said, _disabling([*config.disabled, *off]))

    def close_up(
        self,
        config: OnnxConfig,
        survey: Survey,
        found: Sequence[Finding],
        out: Path,
        scratch: Path,
    ) -> Iterator[str]:
        """Keep the models of the guilty nodes, each with its inputs."""
        number = 0
        for place in (each for places in survey.facts.places.values() for each in places):
            if place.model is None or place.inputs is None:
                continue
            number += 1
            kept = out / f"{config.model.stem}.part{number}.onnx"
            out.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(place.model, kept)
            shutil.copyfile(place.inputs, kept.with_suffix(".npz"))
            yield f"The model of {titles(place.beginning.nodes)} alone: {kept} (inputs: {kept.with_suffix('.npz')})"


TARGET = OnnxTarget()


@dataclass(frozen=True, slots=True)
class _NodeSearch:
    """Looks for the nodes of a finding, in a process that has the model."""

    config: OnnxConfig
    facts: OnnxFacts
    process: TrialProcess
    scratch: Path

    def of_culprit(self, finding: Finding) -> None:
        """Compare the values of the graph with the smallest set on with those of the model with all off."""
        rung = finding.rung
        guilty = finding.sets[0]
        on = [name for name in rung.members if name in guilty]
        off = [name for name in rung.members if name not in guilty]
        said = self.facts.said[rung.name]
        honest, problem = self._values("off", [], [], "model")
        if honest is None:
            said.append(f"its nodes were not found: {problem}")
            return
        changed, problem = self._values(rung.name, on, off, "changed")
        if changed is None:
            said.append(f"its nodes were not found: {problem}")
            return
        if not (honest["is_same"] and changed["is_same"]):
            said.append(
                "looking at the values of the graph changes its outputs: the nodes are a guess"
            )
        distances = self._distances(changed["outputs"], honest["outputs"], changed["graph_outputs"])
        found = beginnings(parse_graph(honest), parse_graph(changed), distances, self._limit)
        if not found:
            said.append("its nodes were not found: no value of the graph that both have differs")
        for number, each in enumerate(found[:_MOST_PLACES]):
            place = self._place(each, rung, on, off, honest["outputs"], number)
            self.facts.places[rung.name].append(place)
            said.append(place.said)
        if len(found) > _MOST_PLACES:
            said.append(f"and at {len(found) - _MOST_PLACES} more places")

    def of_native_operators(self) -> None:
        """Hold each node of the model against onnx's own implementation of it."""
        said = self.facts.said["off"]
        honest, problem = self._values("off", [], [], "model")
        if honest is None:
            said.append(f"its nodes were not looked at: {problem}")
            return
        request = {
            "kind": "reference",
            "values": honest["outputs"],
            "out": str(self.scratch / "reference.npz"),
        }
        reply = self.process.ask(request, self.config.timeout_s)
        if reply.answer is None:
            said.append(f"its nodes were not held against onnx's reference: {reply.reason}")
            return
        own = self._distances(honest["outputs"], reply.answer["outputs"], ())
        graph = parse_graph(honest)
        wrong = [
            (node, max(own.get(name, 0.0) for name in node.outputs))
            for node in graph.nodes
            if any(not own.get(name, 0.0) <= self._limit for name in node.outputs)
        ]
        for node, distance in wrong[:_MOST_PLACES]:
            said.append(
                f"native operator: {node.title} gives {distance:.3g} times what honest runs differ by another"
                " result than onnx's reference, from the same inputs"
            )
        if not wrong:
            said.append(
                f"every one of {len(graph.nodes)} nodes gives what onnx's reference gives for its inputs: the golden"
                " outputs are of another model, other inputs, or what runs the model treats them otherwise"
            )
        if reply.answer["problems"]:
            first = next(iter(reply.answer["problems"].items()))
            count = len(reply.answer["problems"])
            said.append(f"{count} nodes have no reference, the first is {first[0]}: {first[1]}")

    @property
    def _limit(self) -> float:
        return 1.0 if self.config.tolerance is None else self.config.tolerance

    def _values(
        self, rung: str, on: Sequence[str], off: Sequence[str], name: str
    ) -> tuple[Mapping[str, Any] | None, str]:
        request = {
            "kind": "values",
            "rung": rung,
            "on": list(on),
            "off": list(off),
            "out": str(self.scratch / f"{name}.values.npz"),
            "saved": "" if rung == "off" else str(self.scratch / f"{name}.onnx"),
        }
        reply = self.process.ask(request, self.config.timeout_s)
        return reply.answer, reply.reason

    def _distances(self, tested: str, golden: str, always: Sequence[str]) -> dict[str, float]:
        """Return how far values are apart that both files have in one shape and dtype, and those of `always`."""
        measure = Measure(Path(golden), {}, self.config.metric or "", self.config.tolerance)
        found: dict[str, float] = {}
        with np.load(tested) as ours, np.load(golden) as theirs:
            for name in theirs.files:
                if name not in ours.files:
                    continue
                one, other = ours[name], theirs[name]
                if name in always or (one.shape == other.shape and one.dtype == other.dtype):
                    (row,) = measure.compare({name: one}, {name: other}).outputs
                    found[name] = np.inf if row.distance is None else row.distance
        return found

    def _place(
        self,
        beginning: Beginning,
        rung: Rung,
        on: Sequence[str],
        off: Sequence[str],
        values: str,
        number: int,
    ) -> Place:
        """Crop the model to the nodes of a beginning and run that with and without the culprit."""
        said = (
            f"{titles(beginning.nodes)} became {titles(beginning.kernels)}: {beginning.value} differs by"
            f" {beginning.distance:.3g} times what honest runs differ by"
        )
        path = self.scratch / f"{rung.name}.part{number}.onnx"
        inputs = path.with_suffix(".npz")
        request = {
            "kind": "extract",
            "inputs": list(beginning.inputs),
            "results": [beginning.value],
            "values": values,
            "out": str(path),
            "inputs_out": str(inputs),
        }
        reply = self.process.ask(request, self.config.timeout_s)
        if reply.answer is None:
            return Place(
                beginning, None, None, f"{said} (these nodes alone were not saved: {reply.reason})"
            )
        outputs = []
        for name, level, members in (("with", rung.name, off), ("without", "off", [])):
            out = self.scratch / f"{path.stem}.{name}.npz"
            run = {"kind": "run", "model": str(path), "inputs_from": str(inputs), "rung": level}
            answer = self.process.ask(
                {**run, "on": list(on), "off": list(members), "out": str(out)},
                self.config.timeout_s,
            ).answer
            outputs.append(None if answer is None else str(out))
        if outputs[0] is None or outputs[1] is None:
            return Place(beginning, path, inputs, said)
        distance = max(self._distances(outputs[0], outputs[1], [beginning.value]).values())
        shows = distance > self._limit
        told = "alone they show it" if shows else "alone they do not show it"
        return Place(beginning, path, inputs, f"{said}; {told} ({distance:.3g})")


def _opened(path: Path) -> Any:
    try:
        return open_file(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot read it: {error.strerror}; give an .onnx file") from None


def _process(config: OnnxConfig, settings: Mapping[str, Any], scratch: Path) -> TrialProcess:
    return TrialProcess(interpreter(config.python), _INSIDE, settings, scratch)


def _described(process: TrialProcess, config: OnnxConfig) -> Mapping[str, Any]:
    """Return what the model says of itself.

    Raises:
        UsageError: there is no onnxruntime, or the model does not load.
    """
    reply = process.ask({"kind": "describe"}, config.timeout_s)
    if reply.answer is not None:
        return reply.answer
    if "No module named" in reply.error:
        raise UsageError(
            f"{interpreter(config.python)} has no onnxruntime and onnx ({reply.error}); name the interpreter that"
            " has both with --python"
        )
    raise UsageError(
        f"{config.model}: ONNX Runtime cannot load it: {reply.reason}; give a model that it runs"
    )


def _providers(config: OnnxConfig, there: Sequence[str]) -> tuple[str, ...]:
    """Return the execution providers of the deployed session, without the CPU.

    Raises:
        UsageError: one that was asked for is not there.
    """
    for name in config.provider:
        if name not in there:
            raise UsageError(f"--provider {name}: this onnxruntime has {', '.join(there)}")
    return tuple(name for name in config.provider or there if name not in _NO_RUNG)


def _require_known(
    disabled: Sequence[str],
    levels: Mapping[str, Sequence[Mapping[str, Any]]],
    always: Sequence[str],
    version: str,
) -> None:
    """Require that optimizers can be disabled: ONNX Runtime ignores names that it does not know.

    Raises:
        UsageError: one cannot; names the nearest.
    """
    names = {each["name"] for rows in levels.values() for each in rows}
    names |= {each["holder"] for rows in levels.values() for each in rows if "holder" in each}
    for name in disabled:
        if name in always:
            raise UsageError(
                f"--disabled {name}: ONNX Runtime {version} runs it always; leave it out"
            )
        if name not in names:
            near = get_close_matches(name, sorted(names), 3, 0.4)
            told = f"; the nearest are {', '.join(near)}" if near else ""
            raise UsageError(
                f"--disabled {name}: ONNX Runtime {version} has no such optimizer{told}"
            )


def _rungs(
    levels: Mapping[str, Sequence[Mapping[str, Any]]],
    providers: Sequence[str],
    disabled: Sequence[str],
) -> Iterator[Rung]:
    """Yield the rungs above "off"; levels at which there is nothing to disable are left out."""
    below = "off"
    if providers:
        switches = tuple(Switch(name) for name in providers)
        yield Rung("providers", switches, below, title="execution providers, without optimization")
        below = "providers"
    for level, rows in levels.items():
        names = {each["name"] for each in rows}
        switches = tuple(
            Switch(
                each["name"],
                needs=tuple({each.get("holder", "")} & names),
                hits=None if each["changed"] is None else int(each["changed"]),
                lines=_disabling([each["name"]]),
            )
            for each in rows
            if each["name"] not in disabled
        )
        if switches:
            lines = _level_lines("" if below in ("off", "providers") else below)
            yield Rung(level, switches, below, title=_LEVELS[level], lines=lines)
            below = level


def _level_lines(level: str) -> tuple[tuple[str, str], ...]:
    constant = f"ORT_{_CONSTANTS.get(level, f'ENABLE_{level.upper()}')}"
    return (
        (
            "Python",
            f"options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.{constant}",
        ),
        ("C++", f"session_options.SetGraphOptimizationLevel(GraphOptimizationLevel::{constant});"),
    )


def _disabling(names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    quoted = ", ".join(f'"{name}"' for name in names)
    entry = f'"optimization.disable_specified_optimizers", "{";".join(names)}"'
    return (
        ("Python", f"onnxruntime.InferenceSession(path, options, disabled_optimizers=[{quoted}])"),
        ("C++", f"session_options.AddConfigEntry({entry});"),
    )
