"""The target `torch-compile`: a model or script that is right eagerly, and wrong compiled.

Comes in: a script, or module:function. Goes out: rungs. Called by `commands.bisect`.

One compile with copies taken (`looking.py`) names what changes the result: decompositions, graph passes,
lowerings. The first rungs hold these suspects alone, so that two trials prove each. Where none is suspected,
or the result is wrong without them too, all backends are tried in the order of what they add, and their
switches by halves. What was found in a lowering is then asked of generated code: fusion, vectors, memory.
"""

import hashlib
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ray_precheck.commands.bisect.measure import FLOORS
from ray_precheck.commands.bisect.model_target import (
    Golden,
    ModelOpener,
    honest_outputs,
    measure_of,
)
from ray_precheck.commands.bisect.options import ModelConfig
from ray_precheck.commands.bisect.target import Lines, Survey
from ray_precheck.commands.bisect.targets.torch_compile.native import eager_operators
from ray_precheck.commands.bisect.trial_process import Reply, TrialProcess, interpreter
from ray_precheck.errors import UsageError
from ray_precheck.foreign import read_file
from ray_precheck.options.declared import REQUIRED, Takes, option
from ray_precheck.searching.bisection import Rung, RungFinding, RungSwitch, SearchEnd, TrialAnswer

_INSIDE = Path(__file__).with_name("inside.py")
OFF = Rung("off", title="torch.compile does nothing")
AS_IT_IS = Rung("inductor as it is", title="compiled by inductor")
_CODE = "generated code"
_SUSPECTS = {
    "decomposition": ("decompositions", "decompositions that differ from their operators"),
    "pass": ("graph passes", "graph passes that change the result of a graph"),
    "lowering": ("lowerings", "lowerings that are wrong alone, or before the first wrong value"),
}
# Passes without which nothing after them can be compiled.
_STRUCTURAL = ("decompose_auto_functionalized", "stable_sort", "decompose_map", "decompose_scan")
_SETTINGS = (
    ("setting layout_optimization", "layout_optimization = False"),
    ("setting comprehensive_padding", "comprehensive_padding = False"),
    ("setting rounding between fused casts", "emulate_precision_casts = True"),
)
_CODES = (
    ("code fusion", "max_fusion_size = 1"),
    ("code reused buffers", "allow_buffer_reuse = False"),
    ("code vector instructions", "cpp.simdlen = 1"),
)


def _words(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text))


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """What is compiled."""

    section: ClassVar[str] = "what is compiled"

    program: str = option(
        REQUIRED,
        "program",
        help="a script that calls torch.compile, or module:function or FILE.py:function, a function without"
        " arguments that returns (callable, inputs)",
        metavar="SCRIPT|MODULE:FUNCTION",
        rows="program",
    )
    args: tuple[str, ...] = option(
        (),
        "--args",
        help="the words that the script gets",
        metavar="WORDS",
        becomes=_words,
        rows="args",
    )
    backward: bool = option(
        False,
        "--backward",
        help="compare gradients, too: backward from the outputs of the callable, weighted at random",
        takes=Takes.NOTHING,
        rows="backward",
    )


@dataclass(frozen=True)
class CompileConfig(CompileOptions, ModelConfig):
    """The settings of a search whose trials compile with torch."""


@dataclass(frozen=True, slots=True)
class CompileFacts:
    """What is known before the first trial.

    `look_at_compile` is the answer of `looking.py`, members alone where compiling raised, {} where it
    crashed. `is_wrong`: what was compiled while copies were taken had wrong outputs. `lines` are those of the
    user's code by switch.
    """

    golden: Golden
    settings: Mapping[str, Any]
    look_at_compile: Mapping[str, Any]
    is_wrong: bool
    lines: Mapping[str, str]


class CompileTarget:
    """Whatever torch.compile compiles."""

    name = "torch-compile"
    text = "a model or script that torch.compile makes wrong"
    config = CompileConfig

    def survey(self, config: CompileConfig, scratch: Path, say: Callable[[str], None]) -> Survey:
        """Run the program eagerly, and compile it once to see what changes the result."""
        settings = {
            "program": config.program,
            "args": list(config.args),
            "backward": config.backward,
            "cache": str(scratch / "inductor"),
            "floors": FLOORS,
        }
        process = TrialProcess(interpreter(config.python), _INSIDE, settings, scratch)
        try:
            checked = _checked(process, config)
            golden = _golden(process, config, scratch, checked.get("dtypes", {}))
            say("compiling once, with a copy of the graph around each pass")
            reply = process.ask(
                {"kind": "look_at_compile", "out": str(scratch / "look_at_compile.npz")},
                config.timeout_s,
            )
        finally:
            process.close()
        return _survey_of(config, settings, golden, reply, str(checked.get("torch", "")))

    def opener(self, config: CompileConfig, survey: Survey) -> ModelOpener:
        """Return what opens runners."""
        facts: CompileFacts = survey.facts
        return ModelOpener(
            _INSIDE,
            facts.settings,
            measure_of(config, facts.golden),
            config.python,
            fail_on=config.fail_on,
            timeout_s=config.timeout_s,
        )

    def further(
        self, config: CompileConfig, survey: Survey, found: Sequence[RungFinding], scratch: Path
    ) -> Sequence[Rung]:
        """Return all backends where the suspects explain nothing, and the generated code of a lowering."""
        last, tried = found[-1], {each.rung.name for each in found}
        if last.kind in (SearchEnd.CLEAN, SearchEnd.BUDGET, SearchEnd.NOISE) or _CODE in tried:
            return ()
        facts: CompileFacts = survey.facts
        names = frozenset().union(*last.sets)
        if last.kind is SearchEnd.FOUND:
            is_code = any(name.startswith("lowering") for name in names)
            return (_code_rung(),) if is_code else ()
        backends = _backend_rungs(facts.look_at_compile)
        if last.rung.name == backends[-1].name:
            return (_code_rung(),)
        is_elsewhere = last.rung.name == OFF.name or any(each.name in tried for each in backends)
        return () if is_elsewhere else backends

    def lines(self, config: CompileConfig, survey: Survey, finding: RungFinding) -> Lines:
        """Return where what was found stands in the user's code, and how it is switched off."""
        facts: CompileFacts = survey.facts
        names = sorted(finding.cure or frozenset().union(*finding.sets))
        said = []
        for name in names:
            at = facts.lines.get(name)
            said.extend([f"{name}: {at}"] if at else [])
        if finding.rung.name == _CODE and finding.kind is SearchEnd.WRONG_AT_FOOT:
            said.append(
                "scalar code without fusion is wrong, too: it is no matter of vectors or of memory"
            )
        code: list[tuple[str, str]] = []
        for switch in finding.rung.switches:
            if switch.name in names:
                code.extend(line for line in switch.lines if line not in code)
        if finding.kind is SearchEnd.WRONG_AT_FOOT:
            code.extend(finding.rung.lines)
        return Lines(tuple(said), tuple(code))

    def close_up(
        self,
        config: CompileConfig,
        survey: Survey,
        found: Sequence[RungFinding],
        out: Path,
        scratch: Path,
    ) -> Iterator[str]:
        """Yield a sentence where taking copies changed the result, and where the program is wrong without
        torch.compile which operators are."""
        facts: CompileFacts = survey.facts
        if found[0].rung.name == OFF.name and found[0].kind is SearchEnd.WRONG_AT_FOOT:
            args = config.program, config.args, config.python, config.timeout_s, out, scratch
            yield from eager_operators(*args)
            return
        first = next((each for each in found if each.rung.name in _whole_rungs()), None)
        if (
            first is None
            or "outputs" not in facts.look_at_compile
            or first.kind in (SearchEnd.UNRESOLVED, SearchEnd.BUDGET)
        ):
            return
        is_wrong = first.kind is not SearchEnd.CLEAN
        if is_wrong != facts.is_wrong:
            said = ("right", "wrong") if is_wrong else ("wrong", "right")
            yield f"observing changes the result: {said[0]} while graphs were copied, {said[1]} in trials"


def _whole_rungs() -> tuple[str, ...]:
    return (*(name for name, _ in _SUSPECTS.values() if name != "decompositions"), AS_IT_IS.name)


def _checked(process: TrialProcess, config: CompileConfig) -> Mapping[str, Any]:
    reply = process.ask({"kind": "check"}, config.timeout_s)
    if "No module named 'torch'" in reply.error:
        named = f"--python {config.python}" if config.python else "this interpreter"
        raise UsageError(f"{named} has no torch; name one that has it with --python PATH")
    if reply.answer is None:
        raise UsageError(f"{config.program} cannot be run: {reply.reason}")
    if reply.answer["problem"]:
        raise UsageError(str(reply.answer["problem"]))
    return reply.answer


def _golden(
    process: TrialProcess, config: CompileConfig, scratch: Path, dtypes: Mapping[str, str]
) -> Golden:
    """Return the outputs without torch.compile; bfloat16, which numpy lacks, came as float32."""
    golden = honest_outputs(process, OFF, scratch / "golden", config)
    if config.metric:
        return golden
    coarse = {name: FLOORS[dtype] for name, dtype in dtypes.items() if dtype in FLOORS}
    floors = {name: max(coarse.get(name, 0.0), each) for name, each in golden.floors.items()}
    return Golden(golden.path, floors, golden.is_exact)


def _survey_of(
    config: CompileConfig,
    settings: Mapping[str, Any],
    golden: Golden,
    reply: Reply,
    version: str,
) -> Survey:
    look_at_compile: Mapping[str, Any] = reply.answer or {}
    notes = []
    is_wrong = False
    if "outputs" not in look_at_compile:
        reason = look_at_compile.get("error") or reply.reason
        notes.append(
            f"compiling it fails ({reason}): nothing is known of results before the trials"
        )
    else:
        judged = measure_of(config, golden).judge(Path(look_at_compile["outputs"]))
        is_wrong = judged.answer is TrialAnswer.FAIL
        notes.extend(_notes_of(look_at_compile))
    rungs = _first_rungs(look_at_compile, is_wrong)
    if config.golden is not None or config.check:
        rungs = (OFF, *rungs)
    text = config.program
    source = hashlib.sha256(read_file(Path(text))).hexdigest() if Path(text).is_file() else text
    lines: dict[str, str] = {}
    for each in look_at_compile.get("members", ()):
        if each["line"]:
            lines[each["name"]] = each["line"]
            lines.setdefault(f"{_group_of(each['name'])} (all)", each["line"])
    lines.update(_lines_of_passes(look_at_compile))
    return Survey(
        rungs,
        tuple(notes),
        {"program": source, "torch": version},
        CompileFacts(golden, settings, look_at_compile, is_wrong, lines),
        is_exact=golden.is_exact,
    )


def _notes_of(look_at_compile: Mapping[str, Any]) -> Iterator[str]:
    """Yield what one compile has shown."""
    for name, distance in look_at_compile["decompositions"].items():
        yield f"the decomposition of {name} differs from it by {distance:.3g} floors"
    for each in look_at_compile["passes"]:
        if (each["distance"] or 0.0) > 1.0:
            at = f", at {each['lines'][0]}" if each["lines"] else ""
            gone = ", ".join(dict.fromkeys(each["gone"]))
            changed = f"the graph pass {each['name']} changes the result of a graph by"
            yield f"{changed} {each['distance']:.3g} floors; it took away {gone}{at}"
    for graph in look_at_compile["graphs"]:
        for name, distance in graph["wrong"].items():
            yield f"the {name} is wrong alone, by {distance:.3g} floors"
    skipped = look_at_compile["skipped"]
    if skipped:
        told = ", ".join(f"{count} of kind {kind}" for kind, count in skipped.items())
        yield f"left to trials, since it could not be run apart: {told}"


def _first_rungs(look_at_compile: Mapping[str, Any], is_wrong: bool) -> tuple[Rung, ...]:
    if "outputs" not in look_at_compile:
        return _backend_rungs(look_at_compile)
    if not is_wrong:
        return (AS_IT_IS,)
    found = {kind: _suspects(look_at_compile, kind) for kind in _SUSPECTS}
    rungs = [
        Rung(_SUSPECTS[kind][0], switches, title=_SUSPECTS[kind][1])
        for kind, switches in found.items()
        if switches
    ]
    return tuple(rungs) or _backend_rungs(look_at_compile)


def _suspects(look_at_compile: Mapping[str, Any], kind: str) -> tuple[RungSwitch, ...]:
    if kind == "decomposition":
        found = look_at_compile["decompositions"]
        return tuple(_switch(f"decomposition {name} (all)") for name in found)
    if kind == "pass":
        wrong = [
            each["switch"] for each in look_at_compile["passes"] if (each["distance"] or 0.0) > 1.0
        ]
        return tuple(map(_switch, _grouped([name for name in wrong if name], wrong)))
    graphs = [each for each in look_at_compile["graphs"] if (each["distance"] or 0.0) > 1.0]
    alone = [name for each in graphs for name in each["wrong"]]
    if alone:
        return tuple(
            map(_switch, _grouped(alone, [each["name"] for each in look_at_compile["members"]]))
        )
    before = [pair for each in graphs for pair in each["before"]]
    return tuple(_switch(name, hits=int(not is_right)) for name, is_right in before)


def _grouped(names: Sequence[str], members: Sequence[str]) -> list[str]:
    """Return switches, those of one operator or pass as one: what is wrong is so wherever it stands."""
    counts = Counter(map(_group_of, members))
    groups = {_group_of(name): name for name in reversed(names)}
    return [
        name if counts[group] <= 1 else f"{group} (all)" for group, name in reversed(groups.items())
    ]


def _group_of(name: str) -> str:
    """Return the name without what tells occurrences apart."""
    kind, _, rest = name.partition(" #")[0].partition(" ")
    return f"{kind} {rest.split()[0] if kind == 'lowering' else rest}"


def _switch(name: str, hits: int | None = None) -> RungSwitch:
    kind, _, rest = name.removesuffix(" (all)").partition(" #")[0].partition(" ")
    line = ""
    if kind == "lowering":
        line = f"torch._inductor.lowering.make_fallback(torch.ops.{rest.split()[0]})"
    elif kind == "decomposition":
        line = f"torch._inductor.decomposition.decompositions.pop(torch.ops.{rest})"
    elif kind == "pass":
        line = f'torch._inductor.config.disabled_passes = "{rest.rpartition(" ")[2]}"'
    stays = kind == "pass" and any(each in rest for each in _STRUCTURAL)
    return RungSwitch(name, stays=stays, hits=hits, lines=(("python", line),) if line else ())


def _backend_rungs(look_at_compile: Mapping[str, Any]) -> tuple[Rung, ...]:
    members = look_at_compile.get("members", ())
    changed = {each["switch"] for each in look_at_compile.get("passes", ())}
    decompositions = [each["name"] for each in members if each["kind"] == "decomposition"]
    passes = [each["name"] for each in members if each["kind"] == "pass"]
    lowerings = [each["name"] for each in members if each["kind"] == "lowering"]
    inductor = (
        *(_switch(name, hits=int(name in changed)) for name in passes),
        *(_setting(name, line, hits=1) for name, line in _SETTINGS),
        *(_switch(name, hits=1) for name in lowerings),
    )
    by_backend = {
        "eager": ((), "graphs are taken, and run as they are"),
        "aot_eager": ((), "forward and backward graphs are made, and run as they are"),
        "aot_eager_decomp_partition": (
            tuple(map(_switch, decompositions)),
            "operators are decomposed, and graphs are partitioned",
        ),
        "inductor": (inductor, "graph passes, lowerings and generated code"),
    }
    return tuple(
        Rung(name, switches, title=title, lines=_backend_line(name))
        for name, (switches, title) in by_backend.items()
    )


def _backend_line(name: str) -> tuple[tuple[str, str], ...]:
    under = {"aot_eager": "eager", "aot_eager_decomp_partition": "aot_eager"}
    under["inductor"] = "aot_eager_decomp_partition"
    return (("python", f'torch.compile(..., backend="{under[name]}")'),) if name in under else ()


def _setting(name: str, line: str, hits: int | None = None) -> RungSwitch:
    return RungSwitch(name, hits=hits, lines=(("python", f"torch._inductor.config.{line}"),))


def _code_rung() -> Rung:
    switches = tuple(_setting(name, line) for name, line in _CODES)
    return Rung(_CODE, switches, title="how generated code is joined, and written")


def _lines_of_passes(look_at_compile: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for each in look_at_compile.get("passes", ()):
        if each["switch"] and each["lines"]:
            yield each["switch"], each["lines"][0]


TARGET = CompileTarget()
