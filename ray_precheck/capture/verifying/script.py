"""The verification of a step of a script, which is run several times up to the end of that step.

Comes in: the words of a command, and the settings of the capture. Goes out: a verdict. Called by
`capture --verify`.

Runs begin in the same state if the script has fixed its seeds; that two runs without capture come to the same
is looked at first. Python's seed of hashes is fixed here, because scripts cannot fix it themselves.
"""

import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ray_precheck.capture.account import read_accounts
from ray_precheck.capture.launch import environment, program_of, run_program, sentence_of
from ray_precheck.capture.settings import CaptureSettings
from ray_precheck.capture.verifying.process import read_traces
from ray_precheck.capture.verifying.trace import StepTrace, TracedRun, Traces
from ray_precheck.capture.verifying.verdict import LookingVerdict, verify_runs
from ray_precheck.errors import UsageError

_HOW = {
    TracedRun.PLAIN: "without capture",
    TracedRun.CAPTURED: "with capture",
    TracedRun.WATCHED: "without capture, with digests at each operator",
    TracedRun.WATCHED_CAPTURE: "with capture, with digests at each operator",
}
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


def verify_script(
    words: Sequence[str], settings: CaptureSettings, tell: Callable[[str], None]
) -> LookingVerdict:
    """Verify the first step that is to be captured; its dump is left in the folder of the settings.

    Raises:
        UsageError: the script is not found, or did not come to the end of the step.
    """
    program = program_of(words)
    count = 0

    def run(how: TracedRun) -> Traces:
        nonlocal count
        count += 1
        tell(f"run {count}, {_HOW[how]}")
        with tempfile.TemporaryDirectory(prefix="ray_precheck_verify_") as folder:
            place = settings.path if how is TracedRun.CAPTURED else Path(folder) / "dump"
            notes = Path(folder) / "notes"
            notes.mkdir()
            return _run([program, *words[1:]], replace(settings, path=place), notes, how)

    return verify_runs(run)


def _run(words: Sequence[str], settings: CaptureSettings, notes: Path, how: TracedRun) -> Traces:
    began = time.time()
    variables = environment(settings, notes, began, verify=how.value)
    status = run_program(words, {"PYTHONHASHSEED": "0", **variables})
    traces = read_traces(notes)
    if how is not TracedRun.PLAIN and _is_of_script(status, notes):
        # Without capture it came to the end of the step.
        told = _ended(status)
        return {name: replace(each, raised=told) for name, each in traces.items()} or {
            "": StepTrace(raised=told)
        }
    why = _why_not(status, settings, notes, began, words) if status or not traces else ""
    if why:
        raise UsageError(f"nothing can be said: in the run {_HOW[how]} {why}")
    return traces


def _is_of_script(status: int, notes: Path) -> bool:
    """Return whether the script ended badly by itself, not by the user or a fault of its capture."""
    failed = any(account.failure for account in read_accounts(notes))
    return not failed and (status > 0 or -status in _CRASHES)


def _ended(status: int) -> str:
    if status < 0:
        return f"the script was ended by {signal.Signals(-status).name}"
    return f"the script ended with exit code {status}"


def _why_not(
    status: int, settings: CaptureSettings, notes: Path, began: float, words: Sequence[str]
) -> str:
    """Return why a run has no traces of a whole step."""
    accounts = read_accounts(notes)
    for account in accounts:
        if account.failure:
            return f"the step could not be captured: {account.failure}"
    if status:
        return f"{_ended(status)} before the step's end"
    if any(account.is_open for account in accounts):
        return "the script ended before the step did"
    told = sentence_of(settings, notes, began, words)
    return f"no step came: {told.removeprefix('nothing was captured: ')}"
