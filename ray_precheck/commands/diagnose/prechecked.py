"""The sentences of a page about the precheck of the suspects on the device of this machine.

Comes in: `Findings`. Goes out: sentences. Called by `page`.
"""

from collections.abc import Iterator

from ray_precheck.commands.diagnose.findings import UNSAID, Findings, SuspectCheck
from ray_precheck.commands.precheck.report.closing import tested_text
from ray_precheck.schema.result import Verdict
from ray_precheck.store.done import ResultRow

_SHOWN = 5
_LONGEST = 300


def precheck_sentences(findings: Findings) -> Iterator[str]:
    """Yield what the device of this machine made of each suspect."""
    if not findings.checks:
        if findings.unchecked:
            yield UNSAID
        else:
            yield "There is no suspect to run here."
        return
    for check in findings.checks:
        yield from _checked(check, len(findings.dumps) > 1)


def _checked(check: SuspectCheck, is_many: bool) -> Iterator[str]:
    summary = check.report.summary
    tested = tested_text(summary.environment) or "the device of this machine"
    label = f"{check.dump.label}: " if is_many else ""
    inputs = "captured inputs" if has_files(check) else "inputs made from the statistics"
    if check.is_whole:
        yield (
            f"{label}No part could name suspects, so all {summary.total} calls ran on {tested}, with"
            f" {inputs}: {summary.passes} pass, {summary.errors} are in error, {summary.skips} could not be"
            " checked."
        )
    else:
        yield f"{label}The suspects ran on {tested}, with {inputs}:"
    for row in check.rows[:_SHOWN]:
        yield f"- {row.name} {_verdict(row, is_suspect=not check.is_whole)}"
    if len(check.rows) > _SHOWN:
        yield f"{len(check.rows) - _SHOWN} more are in {check.report.files.result.name}."
    wrong = any(row.is_error for row in check.rows)
    if check.is_whole or wrong or not summary.passes:
        return
    if has_files(check):
        yield (
            "So the operator is right here: the captured results were made by another device or version, or"
            " by code around it that this run does not have."
        )
    else:
        yield (
            "So the operator is right here, on inputs like the captured ones; a fault that these very values"
            " bring about is not seen without captured inputs."
        )


def has_files(check: SuspectCheck) -> bool:
    """Return whether a dump has its tensors in files, so that calls run on captured inputs."""
    return (check.dump.path.parent / "dump_tensor_data").is_dir()


def _verdict(row: ResultRow, *, is_suspect: bool) -> str:
    message = row.message if len(row.message) <= _LONGEST else f"{row.message[: _LONGEST - 3]}..."
    if row.is_error:
        return f"is in error{' here, too' if is_suspect else ''}: {message}."
    if row.verdict is Verdict.PASS:
        return "passes."
    return f"could not be checked: {message}."
