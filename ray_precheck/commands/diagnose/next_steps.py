"""What to do next: sentences with the commands that do it.

Comes in: `Findings` and the page. Goes out: steps, each a sentence and its commands. Called by `page`.
"""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from ray_precheck.commands.diagnose.blame import culprits_of
from ray_precheck.commands.diagnose.findings import Findings, SuspectCheck
from ray_precheck.commands.locate.report import row_of_place, saved_call
from ray_precheck.commands.locate.search import LocationReport
from ray_precheck.commands.locate.walk.places import RootPlace
from ray_precheck.commands.locate.walk.roots import RootKind
from ray_precheck.schema.result import Verdict

Step: TypeAlias = tuple[str, ...]
_SCRIPT = "-- python train.py"
_ALIKE = {
    RootKind.INPUT: "the same data in the same order",
    RootKind.WEIGHT: "the same weights",
    RootKind.MASK: "the same seed of every generator",
    RootKind.CONFIGURATION: "the same arguments and settings",
}


def next_steps(findings: Findings, page: Path) -> list[Step]:
    """Return the steps, the most urgent first; there is at least one."""
    steps = [
        *_given(findings),
        *_culprit(findings, page),
        *_more_data(findings),
    ]
    return steps or [_NOTHING]


_NOTHING: Step = (
    "Nothing of these captures needs a look. Where the training goes wrong later, capture the steps in which"
    " it does, and diagnose them:",
    f"ray-precheck capture --steps 100-101 --task tensor --level mix -o later_dump {_SCRIPT}",
)


def _given(findings: Findings) -> Iterator[Step]:
    location = findings.location
    kinds = [place.root.kind for place in location.places] if location is not None else []
    alike = [text for kind, text in _ALIKE.items() if kind in kinds]
    if alike:
        yield (
            f"Give both runs {' and '.join(alike)}, capture both again, and diagnose them:",
            f"ray-precheck capture --task tensor --level mix -o again_dump {_SCRIPT}",
            f"ray-precheck diagnose -tp again_dump -gp {_quoted(findings.golden)} -o again",
        )


def _culprit(findings: Findings, page: Path) -> Iterator[Step]:
    """Yield the steps of the likeliest culprit: alone, here, on the device, with other kernels."""
    location = findings.location
    found = culprits_of(location) if location is not None else []
    gap = next((place for place in found if place.root.kind is RootKind.GAP), None)
    first = next((place for place in found if place.root.kind is not RootKind.GAP), None)
    if first is not None and first.root.kind is RootKind.CALL:
        yield (
            f"Make both scripts do the same there, or see why they must not: {first.root.message}.",
        )
    if location is not None and first is not None:
        saved = saved_call(first, location.errors or {})
        if saved is not None:
            yield (
                f"See the failure of {_call(first)} alone, in a script that needs the framework and NumPy:",
                f"ray-precheck repro {_quoted(saved)} > repro.py && python repro.py",
            )
    yield from _on_the_device(findings, page)
    if gap is not None and gap is found[0] and location is not None:
        yield _gap_step(gap, location)


def _on_the_device(findings: Findings, page: Path) -> Iterator[Step]:
    """Yield what follows from the precheck: other kernels where it errs here, else the device itself."""
    for check in findings.checks:
        wrong = [row.name for row in check.rows if row.is_error]
        passes = any(row.verdict is Verdict.PASS for row in check.rows)
        kind = check.report.summary.environment.kind
        if wrong:
            yield _wrong_here(check, wrong, page)
            return
        if passes and kind == "cpu":
            yield (
                "It passes on the CPU of this machine. Run it on the device that made the capture (a machine"
                " that has the NPU, or gpu for npu):",
                _run_ut(check, page),
            )
            return
        if passes:
            yield (
                f"It passes on this machine's {kind} when it runs alone. See whether it gives the same twice,"
                " and which kernel it depends on:",
                f"ray-precheck naive {_quoted(check.dump.path)} -o {_quoted(page.parent / 'naive')}",
            )
            return


def _wrong_here(check: SuspectCheck, wrong: list[str], page: Path) -> Step:
    files = [check.report.files.errors / f"{name}.json" for name in wrong]
    saved = next((file for file in files if file.exists()), None)
    return (
        f"{wrong[0]} errs on this machine{'' if check.is_whole else ', too'}. See that alone, and find the"
        " kernel or switch that does it:",
        *([f"ray-precheck repro {_quoted(saved)}"] if saved is not None else []),
        f"ray-precheck naive {_quoted(check.dump.path)} -o {_quoted(page.parent / 'naive')}",
    )


def _run_ut(check: SuspectCheck, page: Path) -> str:
    names = [row.name for row in check.rows][:3]
    keywords = " ".join(f"-k {shlex.quote(name)}" for name in names) if not check.is_whole else ""
    out = page.parent / "on_device"
    return " ".join(
        f"ray-precheck run_ut -api_info {_quoted(check.dump.path)} {keywords} --tested device"
        f" --standard auto -save_error_data --device-type npu -o {_quoted(out)}".split()
    )


def _gap_step(gap: RootPlace, location: LocationReport) -> Step:
    root = gap.root
    between = f"between {root.before} and {root.key}" if root.before else f"before {root.key}"
    has_modules = bool(row_of_place(gap, location.table)[0])
    if has_modules and location.errors:
        return (
            f"Read the code {between}: tensors and modules were captured, and no operator was seen there."
            " An operator of your own is captured once it is a custom operator of the framework.",
        )
    return (
        f"Capture what lies {between}: with the modules, too, and operators of your own as custom operators"
        " of the framework:",
        f"ray-precheck capture --task tensor --level mix -o more_dump {_SCRIPT}",
    )


def _more_data(findings: Findings) -> Iterator[Step]:
    """Yield the captures that would tell what this diagnosis could not."""
    location = findings.location
    replayed = bool(location is not None and location.errors)
    is_wrong = bool(findings.suspects) or (location is not None and bool(location.places))
    if not replayed and (is_wrong or location is None):
        why = (
            "Own errors are estimates here. Capture the same step with its tensors, so that each call is"
            " replayed on the very inputs that it got:"
            if location is not None
            else "Capture the step with its tensors, so that each call can be replayed on its inputs:"
        )
        golden = f" -gp {_quoted(findings.golden)}" if findings.golden is not None else ""
        yield (
            why,
            f"ray-precheck capture --task tensor --level mix -o tensor_dump {_SCRIPT}",
            f"ray-precheck diagnose -tp tensor_dump{golden} -o tensor_diagnosis",
        )
    if findings.golden is None:
        yield (
            "Capture the same step of a run that is right (another device or version), which tells other"
            " inputs, weights and masks, and operators that were not captured:",
            f"ray-precheck capture --task tensor -o golden_dump {_SCRIPT}",
            f"ray-precheck diagnose -tp {_quoted(findings.target)} -gp golden_dump -o with_golden",
        )


def _call(place: RootPlace) -> str:
    return place.root.key.removesuffix(f".{place.root.direction}")


def _quoted(path: Path | None) -> str:
    return shlex.quote(str(path))
