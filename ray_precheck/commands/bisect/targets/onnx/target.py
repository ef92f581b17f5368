"""ONNX Runtime: which optimizer or execution provider changes a model's result, and at which nodes.

Comes in: a model, inputs, and the right outputs (by default its own with everything off). Goes out: rungs,
the nodes at which a culprit begins to differ, a model of these nodes alone, and the lines that disable the
optimizer. Called by `commands.bisect`.

The rungs are ONNX Runtime's own steps: nothing, execution providers beside the CPU, then the levels basic,
extended, layout and all of the graph's optimizations. Their switches are the optimizers by the names that
`disabled_optimizers` takes.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ray_precheck.commands.bisect.model_target import (
    Golden,
    ModelOpener,
    asked_of,
    honest_outputs,
    measure_of,
)
from ray_precheck.commands.bisect.target import Lines, Survey, TrialOpener
from ray_precheck.commands.bisect.targets.onnx.inputs import (
    given_inputs,
    random_inputs,
    save_inputs,
)
from ray_precheck.commands.bisect.targets.onnx.node_search import FoundNodes, NodeSearch
from ray_precheck.commands.bisect.targets.onnx.options import OnnxConfig
from ray_precheck.commands.bisect.trial_process import TrialProcess, interpreter
from ray_precheck.errors import UsageError
from ray_precheck.foreign import open_file
from ray_precheck.searching.bisection import Rung, RungFinding, RungSwitch, SearchEnd

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
# As in inside.py: in the name of a rung, before the optimizers that are off in all of its trials.
_WITHOUT = " without "
_ORT_PREFIX = re.compile(r"^\w+: (\[ONNXRuntimeError\] : \d+ : \w+ : )?")
_NO_RUNG = ("CPUExecutionProvider", "AzureExecutionProvider")


@dataclass(frozen=True, slots=True)
class OnnxFacts:
    """What was found of the model: the settings of its sessions, the golden outputs, and by rung its guilty
    `nodes`, which are filled in while it is searched."""

    settings: Mapping[str, Any]
    golden: Golden
    nodes: dict[str, FoundNodes] = field(default_factory=dict)


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
        digest = _digest(config.model)
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
            save_inputs(inputs, arrays)
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
        if not any(levels.values()):
            raise UsageError(
                f"ONNX Runtime {described['onnxruntime']} does not log what its optimizers are; take 1.17 or"
                " newer"
            )
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
        self, config: OnnxConfig, survey: Survey, found: Sequence[RungFinding], scratch: Path
    ) -> Sequence[Rung]:
        """Find the nodes at which what was found begins to differ. Return the levels above it, without the
        culprit: the deployed session is not mended where another optimizer takes its place there."""
        facts: OnnxFacts = survey.facts
        rungs: Sequence[Rung] = ()
        for finding in found:
            rung = finding.rung
            is_native = finding.kind is SearchEnd.WRONG_AT_FOOT and rung.name == "off"
            if rung.name in facts.nodes or not (is_native or finding.kind is SearchEnd.FOUND):
                continue
            with closing(_process(config, facts.settings, scratch)) as process:
                search = NodeSearch(
                    process, scratch, config.metric, config.tolerance, config.timeout_s
                )
                facts.nodes[rung.name] = (
                    search.of_native_operators() if is_native else search.of_culprit(finding)
                )
            if finding.kind is SearchEnd.FOUND:
                rungs = _levels_above(finding, survey.rungs)
        return rungs

    def lines(self, config: OnnxConfig, survey: Survey, finding: RungFinding) -> Lines:
        """Return the nodes of a finding, and the lines that switch the culprit off."""
        nodes = survey.facts.nodes.get(finding.rung.name)
        said = () if nodes is None else nodes.said
        if finding.kind is not SearchEnd.FOUND or not finding.rung.switches:
            return Lines(said)
        off = [*_without(finding.rung), *sorted(finding.cure)]
        return Lines(said, _disabling([*config.disabled, *off], survey.facts.settings["providers"]))

    def close_up(
        self,
        config: OnnxConfig,
        survey: Survey,
        found: Sequence[RungFinding],
        out: Path,
        scratch: Path,
    ) -> Iterator[str]:
        """Keep the models of the guilty nodes, each with its inputs."""
        models = [each for nodes in survey.facts.nodes.values() for each in nodes.models]
        for number, each in enumerate(models, 1):
            kept = out / f"{config.model.stem}.part{number}.onnx"
            out.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(each.model, kept)
            shutil.copyfile(each.inputs, kept.with_suffix(".npz"))
            yield f"These nodes alone, with their inputs: {kept} and {kept.with_suffix('.npz')}"


TARGET = OnnxTarget()


def _digest(path: Path) -> str:
    """Return the SHA-256 of a model's file.

    Raises:
        UsageError: it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with open_file(path) as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise UsageError(f"{path}: cannot read it: {error.strerror}; give an .onnx file") from None
    return digest.hexdigest()


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
            f"{interpreter(config.python)} lacks onnxruntime or onnx ({reply.error}); name the"
            " interpreter that has both by --python"
        )
    if reply.end:
        raise UsageError(
            f"{config.model}: {interpreter(config.python)} ended while it loaded it ({reply.end}); see that"
            " it runs onnxruntime"
        )
    raise UsageError(
        f"{config.model}: ONNX Runtime cannot load it: {_ORT_PREFIX.sub('', reply.error)}"
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
        switches = tuple(RungSwitch(name) for name in providers)
        yield Rung("providers", switches, below, title="execution providers, without optimization")
        below = "providers"
    for level, rows in levels.items():
        names = {each["name"] for each in rows}
        switches = tuple(
            RungSwitch(
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


def _without(rung: Rung) -> list[str]:
    """Return what is off in all trials of a rung, by its name."""
    return list(filter(None, rung.name.partition(_WITHOUT)[2].split(",")))


def _levels_above(finding: RungFinding, rungs: Sequence[Rung]) -> Sequence[Rung]:
    """Return the rungs above that of a finding, without the optimizers or providers of its cure."""
    level = finding.rung.name.partition(_WITHOUT)[0]
    off = [*_without(finding.rung), *sorted(finding.cure)]
    found: list[Rung] = []
    if not off:
        return found
    for rung in rungs[[rung.name for rung in rungs].index(level) + 1 :]:
        found.append(
            replace(
                rung,
                name=f"{rung.name}{_WITHOUT}{','.join(off)}",
                switches=tuple(each for each in rung.switches if each.name not in off),
                over=found[-1].name if found else "",
                title=f"{rung.title}, with the line above",
            )
        )
    return found


def _level_lines(level: str) -> tuple[tuple[str, str], ...]:
    constant = f"ORT_{_CONSTANTS.get(level, f'ENABLE_{level.upper()}')}"
    return (
        (
            "Python",
            f"options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.{constant}",
        ),
        ("C++", f"session_options.SetGraphOptimizationLevel(GraphOptimizationLevel::{constant});"),
    )


def _disabling(names: Sequence[str], providers: Sequence[str] = ()) -> tuple[tuple[str, str], ...]:
    """Return the lines that leave out optimizers, and execution providers, which are among `providers`."""
    optimizers = [name for name in names if name not in providers]
    options, lines = "", []
    if len(optimizers) < len(names):
        left = [*(name for name in providers if name not in names), "CPUExecutionProvider"]
        options += f", providers={json.dumps(left)}"
        gone = ", ".join(name for name in names if name in providers)
        lines.append(("C++", f"// append the execution provider no more: {gone}"))
    if optimizers:
        options += f", disabled_optimizers={json.dumps(optimizers)}"
        entry = f'"optimization.disable_specified_optimizers", "{";".join(optimizers)}"'
        lines.append(("C++", f"session_options.AddConfigEntry({entry});"))
    return ("Python", f"onnxruntime.InferenceSession(path, options{options})"), *lines
