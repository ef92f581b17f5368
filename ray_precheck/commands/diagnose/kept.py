"""What a diagnosis has found, as it is kept beside its page: `diagnose_{timestamp}.json`.

Comes in: `Findings`, the sections and the next steps of the page. Goes out: the file, and its content.
Written by the run, read for the `View`: the page is text for people, which no program should have to read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ray_precheck.commands.diagnose.findings import (
    Findings,
    blame_sentences,
    culprits_of,
    diagnosis_exit_code,
)
from ray_precheck.options.commands import NOTHING_CHECKED, PASSED
from ray_precheck.store.kept import keep_found, kept_found

FORMAT = 1
# How the page of a diagnosis begins until it has come to its end.
UNFINISHED = "This diagnosis has not come to its end."


@dataclass(frozen=True, slots=True)
class KeptDiagnosis:
    """A diagnosis that came to its end. `sections` are the questions of its page, each with its sentences,
    `steps` what to do next, each a sentence and its commands."""

    exit_code: int
    sentence: str
    target: str
    golden: str
    sections: tuple[tuple[str, tuple[str, ...]], ...]
    steps: tuple[tuple[str, ...], ...]


def kept_file(page: Path) -> Path:
    """Return the path of what is kept of the diagnosis that has this page."""
    return page.with_suffix(".json")


def keep_diagnosis(
    findings: Findings,
    page: Path,
    sections: Sequence[tuple[str, Sequence[str]]],
    steps: Sequence[tuple[str, ...]],
) -> None:
    """Keep what a diagnosis has found; where the file cannot be written its view lacks it."""
    kept = KeptDiagnosis(
        diagnosis_exit_code(findings),
        _sentence(findings),
        str(findings.target.absolute()),
        "" if findings.golden is None else str(findings.golden.absolute()),
        tuple((title, tuple(sentences)) for title, sentences in sections),
        tuple(steps),
    )
    keep_found(kept_file(page), kept, FORMAT)


def _sentence(findings: Findings) -> str:
    """Return the diagnosis in one sentence."""
    location, overflow = findings.location, findings.overflow
    if location is not None and culprits_of(location):
        return next(iter(blame_sentences(findings)))
    born = [row for row in overflow.rows if row.is_born] if overflow is not None else []
    if born:
        return f"{born[0].kind} was born in {born[0].api}.{born[0].tensor}: {born[0].message}."
    if location is not None and location.places:
        return f"The runs were given different things: {location.places[0].root.message}."
    wrong = [row.name for check in findings.checks for row in check.rows if row.is_error]
    if wrong:
        return f"{wrong[0]} errs on this machine."
    code = diagnosis_exit_code(findings)
    if code == PASSED:
        return "Nothing is wrong in these captures."
    if code == NOTHING_CHECKED:
        return "Nothing could be checked in these captures."
    return "The captures differ by more than rounding, and what began it could not be found."


def read_diagnosis(page: Path) -> KeptDiagnosis | None:
    """Return what is kept of a diagnosis, None where it has not come to its end, or where the file is torn
    or of another version."""
    found = kept_found(kept_file(page), FORMAT)
    try:
        return None if found is None else KeptDiagnosis(**found)
    except TypeError:
        return None
