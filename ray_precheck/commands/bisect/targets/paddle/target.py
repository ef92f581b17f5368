"""The target Paddle Inference: a model that is right with everything off and wrong as it is deployed.

Comes in: a model with its parameters and inputs. Goes out: rungs in the order of Paddle's guide to precision
tracing, trials, and the operator behind what was found. Called by `commands.bisect`, which finds `TARGET`.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.commands.bisect.measure import FLOORS
from ray_precheck.commands.bisect.model_target import (
    Golden,
    ModelOpener,
    asked_of,
    honest_outputs,
    measure_of,
)
from ray_precheck.commands.bisect.target import Lines, Survey
from ray_precheck.commands.bisect.targets.paddle.bundle import write_bundle
from ray_precheck.commands.bisect.targets.paddle.model_files import (
    INPUTS,
    OPERATORS,
    OUTPUTS,
    PaddleFiles,
    SavedRun,
    input_arrays,
    made_inputs,
    paddle_files,
    require_params,
    run_facts,
    save_run,
    saved_run,
    whole_params,
)
from ray_precheck.commands.bisect.targets.paddle.options import PaddleConfig
from ray_precheck.commands.bisect.targets.paddle.settings import (
    ALL_OFF,
    BF16,
    PASSES,
    PLACEMENT,
    TENSORRT,
    ladder_of,
    off_lines,
    passes_in,
    switch_names,
    tensorrt_lines,
)
from ray_precheck.commands.bisect.targets.paddle.trials import (
    HookedRun,
    PaddleOpener,
    first_differing,
    front_rung,
    is_of_front,
    is_of_operators,
    last_operator,
    operators_rung,
    part_of,
    seen_values,
    settings_on,
)
from ray_precheck.commands.bisect.trial_process import START_S, TrialProcess, interpreter
from ray_precheck.errors import UsageError
from ray_precheck.searching.bisection import Rung, RungFinding, SearchEnd, TrialAnswer

_INSIDE = Path(__file__).with_name("inside.py")
_NOTHING_ON = {"rung": ALL_OFF, "on": [], "off": []}
_PART = "bisect_paddle_part"
_PART_FILES = ("part.json", "part.pdmodel", "part.pdiparams")


@dataclass(frozen=True)
class PaddleFacts:
    """What the survey found. `settings` are those of the process of trials, `passes` those that can be off;
    `said` are sentences by the name of a rung, which `further` adds to."""

    files: PaddleFiles
    settings: Mapping[str, Any]
    described: Mapping[str, Any]
    golden: Golden
    run: Mapping[str, str]
    saved: SavedRun | None
    passes: tuple[str, ...]
    said: dict[str, list[str]] = field(default_factory=dict)


class PaddleTarget:
    """Paddle Inference."""

    name = "paddle"
    text = "a model in Paddle Inference, by oneDNN, memory optimisation, passes and operators"
    config = PaddleConfig

    def survey(self, config: PaddleConfig, scratch: Path, say: Callable[[str], None]) -> Survey:
        """Look at the files, run the model with everything off and on, and read the passes from its log."""
        files = paddle_files(config.model, config.params)
        for library in config.library:
            if not Path(library).is_file():
                raise UsageError(f"--library {library}: there is no such file")
        settings: dict[str, Any] = {
            "model": str(files.model),
            "params": str(files.params),
            "libraries": [str(Path(each).absolute()) for each in config.library],
            "input": str(scratch / INPUTS),
            "gpu": config.gpu,
        }
        process = TrialProcess(interpreter(config.python), _INSIDE, settings, scratch)
        try:
            return self._surveyed(config, scratch, say, files, settings, process)
        finally:
            process.close()

    def _surveyed(
        self,
        config: PaddleConfig,
        scratch: Path,
        say: Callable[[str], None],
        files: PaddleFiles,
        settings: dict[str, Any],
        process: TrialProcess,
    ) -> Survey:
        described = _described(process, files)
        saved = saved_run(config.golden) if config.golden and config.golden.is_dir() else None
        given = config.input or (saved.folder / INPUTS if saved else None)
        if config.gpu and not described["has_gpu"]:
            raise UsageError(
                "--gpu: this Paddle is not built for GPUs; name one that is by --python"
            )
        specs = described["inputs"]
        arrays = input_arrays(given, specs) if given else made_inputs(specs, seed=0)
        np.savez(scratch / INPUTS, **arrays)
        run = run_facts(files, described, arrays)
        notes = [] if given else [f"inputs are made up: {_shapes(arrays)}; give yours by --input"]
        if saved and (difference := saved.differs(run)):
            notes.append(difference)
        golden = saved.folder / OUTPUTS if saved else config.golden
        judged = replace(config, golden=golden)
        found = honest_outputs(process, Rung(ALL_OFF), scratch / "honest", judged)
        rungs = self._rungs(config, process, scratch, described, files.is_new)
        deletable = next(each.members for each in rungs if each.name == PASSES)
        settings = {**settings, "passes": list(deletable)}
        facts = PaddleFacts(files, settings, described, found, run, saved, deletable)
        if config.save_run is not None:
            self._save_run(config.save_run, facts, process, scratch, config.timeout_s)
            say(f"This run is in {config.save_run}; give it by --golden")
        notes += _notes(config, described, files)
        return Survey(rungs, tuple(notes), run, facts, found.is_exact)

    def _rungs(
        self,
        config: PaddleConfig,
        process: TrialProcess,
        scratch: Path,
        described: Mapping[str, Any],
        is_new: bool,
    ) -> tuple[Rung, ...]:
        """Return the rungs. What runs with everything off is structural, and so is what no name deletes."""

        def logged(settings: Mapping[str, Any]) -> dict[str, int | None]:
            request = {"kind": "run", **settings, "out": str(scratch / "logged.npz")}
            reply = process.ask(request, config.timeout_s)
            return passes_in(reply.log)

        structural = list(logged(_NOTHING_ON))
        passes = logged({"rung": PASSES, "on": [], "off": []})
        if not passes:
            raise UsageError(
                f"{config.model}: no pass is named in Paddle's log, so that none can be switched; leave"
                " GLOG_minloglevel and disable_glog_info alone"
            )
        loose = [name for name in passes if name not in structural and name != PLACEMENT]
        names = {name: switch_names(name)[0] for name in loose}
        still = logged({"rung": PASSES, "on": [], "off": list(names.values())})
        names.update({name: name for name in loose if name in still})
        if any(name in still for name in loose):
            still = logged({"rung": PASSES, "on": [], "off": list(names.values())})
            structural += [name for name in loose if name in still]
        with_bf16 = config.bf16 and bool(described["has_bf16"])
        has_tensorrt = config.gpu and any(described["tensorrt"])
        types = dict.fromkeys(each.split()[1] for each in described["operators"])
        return ladder_of(
            passes,
            structural,
            names,
            is_new=is_new,
            with_bf16=with_bf16,
            in_tensorrt=tuple(types) if has_tensorrt else (),
        )

    def _save_run(
        self,
        folder: Path,
        facts: PaddleFacts,
        process: TrialProcess,
        scratch: Path,
        timeout_s: float,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        capture = HookedRun(process, scratch, timeout_s).of(_NOTHING_ON, "saved")
        shutil.copyfile(scratch / "saved.values.npz", folder / OPERATORS)
        shutil.copyfile(capture.outputs, folder / OUTPUTS)
        shutil.copyfile(scratch / INPUTS, folder / INPUTS)
        lines = [line for _, line in off_lines(ALL_OFF, is_new=facts.files.is_new)]
        save_run(folder, facts.run, lines, capture.rows)

    def opener(self, config: PaddleConfig, survey: Survey) -> PaddleOpener:
        """Return what opens runners."""
        facts: PaddleFacts = survey.facts
        measure = measure_of(config, facts.golden)
        opener = ModelOpener(
            _INSIDE,
            facts.settings,
            measure,
            config.python,
            fail_on=config.fail_on,
            timeout_s=config.timeout_s,
        )
        return PaddleOpener(opener, facts.passes)

    def further(
        self, config: PaddleConfig, survey: Survey, found: Sequence[RungFinding], scratch: Path
    ) -> Sequence[Rung]:
        """Look for the operator behind the last finding: by hooks, and by a rung of the model cut behind each
        operator. With everything off wrong: by the training framework's forward, and by hooks."""
        last = found[-1]
        facts: PaddleFacts = survey.facts
        if is_of_operators(last.rung):
            is_known = last.kind is not SearchEnd.FOUND or is_of_front(last.rung)
            front = None if is_known else front_rung(last)
            return () if front is None else (front,)
        if last.kind not in (SearchEnd.FOUND, SearchEnd.WRONG_AT_FOOT):
            return ()
        process = TrialProcess(interpreter(config.python), _INSIDE, facts.settings, scratch)
        try:
            if last.kind is SearchEnd.WRONG_AT_FOOT:
                said = self._said_of_foot(config, facts, process, scratch)
                facts.said[last.rung.name] = said
                return ()
            culprits = sorted(last.sets[0])
            rung = operators_rung(last.rung, culprits, facts.described["operators"])
            facts.said[last.rung.name] = self._said_by_hooks(config, facts, process, rung, scratch)
            return (rung,)
        finally:
            process.close()

    def _said_of_foot(
        self, config: PaddleConfig, facts: PaddleFacts, process: TrialProcess, scratch: Path
    ) -> list[str]:
        """Tell a native operator from the inference interface, as Paddle's guide does."""
        measure = measure_of(config, facts.golden)
        out = scratch / "executor.npz"
        reply = process.ask({"kind": "executor", "out": str(out)}, config.timeout_s)
        said = []
        if reply.answer is None:
            said.append(f"paddle.static.Executor gives no answer: {reply.reason}")
        elif measure.judge(out).answer is TrialAnswer.FAIL:
            said.append("paddle.static.Executor is wrong, too: it is a native operator")
        else:
            said.append("paddle.static.Executor is right: it is the inference interface")
        out = scratch / "everything.npz"
        everything = {"kind": "run", "rung": PASSES, "on": [], "off": [], "out": str(out)}
        reply = process.ask(everything, config.timeout_s)
        if reply.answer is not None and measure.judge(out).answer is TrialAnswer.PASS:
            said.append("with everything on it is right: a fused or a oneDNN kernel hides it")
        if facts.saved is None:
            said.append(
                "give a run of --save-run by --golden, and the operator is found by the values of all"
                " operators"
            )
            return said
        golden = seen_values(facts.saved.folder / OPERATORS, facts.saved.operators)
        tested = HookedRun(process, scratch, config.timeout_s).of(_NOTHING_ON, "off")
        first = first_differing(tested.values, golden)
        said.append(f"the first operator that differs by hooks: {first}" if first else _SAME)
        return said

    def _said_by_hooks(
        self,
        config: PaddleConfig,
        facts: PaddleFacts,
        process: TrialProcess,
        rung: Rung,
        scratch: Path,
    ) -> list[str]:
        capturing = HookedRun(process, scratch, config.timeout_s)
        golden = capturing.of(_NOTHING_ON, "off")
        tested = capturing.of(settings_on(rung, facts.passes), "found")
        said = []
        measure = measure_of(config, facts.golden)
        if measure.judge(tested.outputs).answer is TrialAnswer.PASS and BF16 not in rung.name:
            said.append("with hooks on all values the result is right: observing changes it")
        said += [f"hooks could not read a value: {each}" for each in tested.problems[:1]]
        floor = FLOORS["bfloat16"] if BF16 in rung.name else 0.0
        first = first_differing(tested.values, golden.values, floor)
        said.append(f"the first operator that differs by hooks: {first}" if first else _SAME)
        return said

    def lines(self, config: PaddleConfig, survey: Survey, finding: RungFinding) -> Lines:
        """Return what was seen of a finding's operators, and the lines that switch the cure off."""
        facts: PaddleFacts = survey.facts
        said = tuple(facts.said.get(finding.rung.name, ()))
        if is_of_front(finding.rung) and finding.kind is SearchEnd.WRONG_AT_FOOT:
            return Lines(("it is wrong without any operator in front of it",))
        if is_of_front(finding.rung) and finding.kind is SearchEnd.FOUND:
            return Lines(("the smallest part that is wrong begins with it",))
        if finding.kind is not SearchEnd.FOUND or is_of_operators(finding.rung):
            return Lines(said)
        if config.golden is None and not config.check:
            said += (_OWN_GOLDEN,)
        off = [each for each in finding.rung.switches if each.name in finding.cure]
        return Lines(said, tuple(line for each in off for line in each.lines))

    def close_up(
        self,
        config: PaddleConfig,
        survey: Survey,
        found: Sequence[RungFinding],
        out: Path,
        scratch: Path,
    ) -> Iterator[str]:
        """Save the smallest model that is wrong, pack a bundle, and say what TensorRT would need."""
        facts: PaddleFacts = survey.facts
        cuts = [each for each in found if is_of_operators(each.rung)]
        cut = next((each for each in cuts if each.kind is SearchEnd.FOUND), None)
        part: Path | None = None
        if cut is not None:
            part = self._save_part(config, facts, cuts, out, scratch)
            yield f"The smallest model that is wrong: {part}"
        elif found[-1].kind is SearchEnd.CLEAN and found[-1].rung.name != TENSORRT:
            yield "TensorRT, which was not tried, needs these settings"
            with np.load(scratch / INPUTS) as arrays:
                shapes = {name: array.shape for name, array in arrays.items()}
            yield from (f"  {language}: {line}" for language, line in tensorrt_lines(shapes))
        if config.bundle is not None:
            settings = (
                settings_on(cut.rung, facts.passes)
                if cut is not None
                else {"rung": PASSES, "off": []}
            )
            inputs, outputs = scratch / INPUTS, facts.golden.path
            if part is not None:
                inputs, outputs = part.with_name(INPUTS), part.with_name(OUTPUTS)
            files = PaddleFiles(part, part.with_suffix(".pdiparams")) if part else facts.files
            write_bundle(config.bundle, files, inputs, outputs, settings, facts.run)
            yield f"What a report needs: {config.bundle}"

    def _save_part(
        self,
        config: PaddleConfig,
        facts: PaddleFacts,
        cuts: Sequence[RungFinding],
        out: Path,
        scratch: Path,
    ) -> Path:
        first, last = 0, last_operator(cuts[0])
        for front in cuts[1:]:
            if front.kind in (SearchEnd.FOUND, SearchEnd.WRONG_AT_FOOT):
                first, _ = part_of(front.rung, front.sets[0] if front.sets else ())
        folder = out / _PART
        folder.mkdir(parents=True, exist_ok=True)
        # A model without parameters would be loaded with those of an earlier run.
        for name in (*_PART_FILES, INPUTS, OUTPUTS):
            (folder / name).unlink(missing_ok=True)
        process = TrialProcess(interpreter(config.python), _INSIDE, facts.settings, scratch)
        try:
            request = {"kind": "crop", "first": first, "last": last}
            request["folder"] = str(folder.absolute())
            reply = asked_of(process, request, config.timeout_s, "the cut of the model")
            request = {"kind": "run", **_NOTHING_ON, **(reply.answer or {})}
            request["out"] = str(folder / OUTPUTS)
            asked_of(process, request, config.timeout_s, "the smallest model")
        finally:
            process.close()
        assert reply.answer is not None
        return Path(reply.answer["model"])


_OWN_GOLDEN = (
    "right is here what this Paddle makes with everything off; if that may be wrong itself, give the right"
    " outputs by --golden"
)
_SAME = "no operator differs by hooks: what differs is between them, or hooks do not reach it"


def _described(process: TrialProcess, files: PaddleFiles) -> dict[str, Any]:
    """Return what Paddle says of a model; its parameters are looked at first."""
    shapes = whole_params(files)
    reply = process.ask({"kind": "describe"}, START_S)
    if reply.answer is None:
        why = reply.reason
        if why.startswith("ModuleNotFoundError"):
            raise UsageError(
                f"the interpreter of --python has no Paddle ({why}); name one that has it"
            )
        if shapes is None:
            raise UsageError(
                f"{files.params}: there is no such file; give the parameters by --params"
            )
        raise UsageError(
            f"{files.model}: Paddle cannot load the model with the parameters {files.params}: {why}"
        )
    require_params(files, shapes, reply.answer["parameters"])
    return reply.answer


def _shapes(arrays: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in arrays.items())


def _notes(config: PaddleConfig, described: Mapping[str, Any], files: PaddleFiles) -> list[str]:
    """Return which rungs are not tried, and why."""
    notes = []
    if files.is_new:
        notes.append("memory optimisation is not tried: Paddle has it for the old format alone")
    if config.bf16 and not described["has_bf16"]:
        notes.append("--bf16 is not tried: this processor has no AVX512 for it")
    if not config.gpu or not any(described["tensorrt"]):
        why = "it needs --gpu" if any(described["tensorrt"]) else "this Paddle has none"
        notes.append(f"TensorRT is not tried: {why}")
    return notes


TARGET = PaddleTarget()
