"""A diagnosis from its configuration to its page.

Comes in: a `DiagnosisConfig`. Goes out: a `Diagnosis`. Called by the command line, and by programs that
import the package. The parts run one after the other in this process, in one cluster and with one stamp:
comparison, search for the operator to blame, search for births of NaN and infinity, precheck of the suspects.
A part that cannot be done is a sentence of the page.
"""

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ray_precheck.commands.diagnose.findings import Findings, Part, Suspect
from ray_precheck.commands.diagnose.kept import UNFINISHED, keep_diagnosis
from ray_precheck.commands.diagnose.options import DiagnosisConfig
from ray_precheck.commands.diagnose.page import next_steps, page_sections, page_text
from ray_precheck.commands.diagnose.parts import (
    DiagnosisParts,
    new_page,
    resumed_page,
    stamp_of,
    write_page,
)
from ray_precheck.commands.locate.walk.nouns import RootKind
from ray_precheck.dump.folders import FoundDump
from ray_precheck.errors import (
    DumpError,
    PrecheckError,
    ResumeError,
    StoppedError,
    UsageError,
)
from ray_precheck.foreign import open_file
from ray_precheck.formats.conversion import find_dumps_to_run
from ray_precheck.running.run import RunSession
from ray_precheck.runtime.places.choice import Cluster
from ray_precheck.runtime.stop_signal import stop_on_signal
from ray_precheck.runtime.workers.fork_server import kept_servers
from ray_precheck.store.claim import ClaimedError, claimed

T = TypeVar("T")
# So many suspects are prechecked on the device: the likeliest come first, and a device that errs everywhere
# is found by the first ones.
MOST_SUSPECTS = 20
_NO_GOLDEN = "there is no golden run to compare with (name one with -gp)"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The outcome of a diagnosis. `completed` is False if it stopped before its end, for the reason
    `stop_reason` or on request; then `text`, which `page` holds, is "" and `folder` resumes it."""

    folder: Path
    page: Path
    findings: Findings
    completed: bool
    stop_reason: str = ""
    text: str = ""


def diagnose_captures(
    target: str | Path,
    golden: str | Path | None = None,
    *,
    out: str | Path = "./",
    show_progress: bool = False,
    **options: Any,
) -> Diagnosis:
    """Say what is wrong with a capture, perhaps beside that of a golden run.

    `options` are the other fields of `DiagnosisConfig`: `noise`, `match`, `standard`, `devices`, ...

    Raises:
        PrecheckError: a capture or an option is wrong.
    """
    other = Path(golden) if golden is not None else None
    config = DiagnosisConfig(target=Path(target), golden=other, out=Path(out), **options)
    return run_diagnosis(config, show_progress=show_progress)


def run_diagnosis(
    config: DiagnosisConfig,
    *,
    show_progress: bool = True,
    on_files: Callable[[Path], None] = lambda path: None,
) -> Diagnosis:
    """Run what `config` asks for. `on_files` is called with the folder that resumes it.

    Raises:
        PrecheckError: a wrong option or capture, or no part can be done. A diagnosis that had to stop is
            reported as not completed, and is resumed with `resume_csv`.
    """
    config.validate()
    dumps = _readable(config.target)
    for other in filter(None, (config.golden, config.noise)):
        _readable(other)
    resume = config.resume_csv
    page = new_page(config.out) if resume is None else resumed_page(resume)
    findings = Findings(config.target, config.golden, dumps)
    with ExitStack() as opened, _held(page), stop_on_signal() as stop:
        if resume is None:
            write_page(page, _unfinished(config, page.parent))
        on_files(page.parent)
        session = RunSession(
            Cluster(config, opened),
            opened.enter_context(kept_servers()),
            stamp_of(page),
            stop.is_set,
            goes_on=resume is not None,
            show=show_progress,
            on_files=lambda path: None,
        )
        parts = DiagnosisParts(config, page.parent, session)
        run = _Course(parts, findings)
        try:
            run.follow()
        except StoppedError as error:
            reason = "" if stop.is_set() else str(error)
            return Diagnosis(page.parent, page, run.findings, completed=False, stop_reason=reason)
        except PrecheckError:
            if resume is None:
                page.unlink(missing_ok=True)
            raise
    sections, steps = page_sections(run.findings), next_steps(run.findings, page)
    text = page_text(run.findings, sections, steps)
    keep_diagnosis(run.findings, page, sections, steps)
    write_page(page, text)
    return Diagnosis(page.parent, page, run.findings, completed=True, text=text)


def _readable(path: Path) -> tuple[FoundDump, ...]:
    """Return the dumps that a path names.

    Raises:
        DumpError: there is none, or the first cannot be opened.
    """
    dumps = find_dumps_to_run(path).dumps
    try:
        open_file(dumps[0].path).close()
    except OSError as error:
        raise DumpError(f"cannot read the dump {str(path)!r}: {error.strerror}") from None
    return dumps


@contextmanager
def _held(page: Path) -> Iterator[None]:
    """Hold a diagnosis for this process.

    Raises:
        ResumeError: another process has it.
    """
    with ExitStack() as claim:
        try:
            claim.enter_context(claimed(page.with_suffix(".lock")))
        except ClaimedError as error:
            raise ResumeError(
                f"another run has {page}: {error.holder}; wait for its end, or stop it first"
            ) from None
        except OSError as error:
            raise UsageError(f"cannot write to {page.parent}: {error.strerror}") from None
        yield


def _unfinished(config: DiagnosisConfig, folder: Path) -> str:
    words = ["ray-precheck", "diagnose", "-tp", str(config.target)]
    words += ["-gp", str(config.golden)] if config.golden is not None else []
    command = shlex.join([*words, "-csv_path", str(folder)])
    return f"{UNFINISHED} To go on, with its other options:\n  {command}\n"


class _Course:
    """The parts one after the other; `findings` has what is known so far."""

    def __init__(self, parts: DiagnosisParts, findings: Findings) -> None:
        self.findings = findings
        self._parts = parts
        self._first_error: PrecheckError | None = None

    def follow(self) -> None:
        """Do all parts.

        Raises:
            StoppedError: a part came to no end; the message is "" where it was stopped on request.
            PrecheckError: no part can be done, or the two captures have nothing in common.
        """
        parts = self._parts
        if self.findings.golden is None:
            self._note(Part.COMPARE, _NO_GOLDEN)
        else:
            self._keep(comparison=self._do(Part.COMPARE, parts.compare))
        self._keep(location=self._do(Part.LOCATE, parts.locate))
        self._require_something_in_common()
        self._keep(overflow=self._do(Part.OVERFLOW, parts.check_overflow))
        self._precheck()
        found = self.findings
        if self._first_error is not None and not (
            found.comparison or found.overflow or found.location or found.checks
        ):
            raise self._first_error

    def _do(self, part: Part, work: Callable[[], T]) -> T | None:
        """Do a part; returns None where it cannot be done, with a note of the reason."""
        found, reason = self._attempt(part.value, work)
        if reason:
            self._note(part, reason)
        return found

    def _attempt(self, doing: str, work: Callable[[], T]) -> tuple[T | None, str]:
        """Return what some work gives, or None and the reason why it cannot be done.

        Raises:
            StoppedError, ResumeError: the diagnosis ends here.
        """
        if self._parts.session.is_stopped:
            raise StoppedError("")
        self._parts.session.say(f"{doing}:")
        try:
            return work(), ""
        except (StoppedError, ResumeError):
            raise
        except PrecheckError as error:
            self._first_error = self._first_error or error
            return None, str(error)

    def _keep(self, **found: Any) -> None:
        self.findings = replace(self.findings, **found)

    def _note(self, part: Part, sentence: str) -> None:
        self._keep(not_done={**self.findings.not_done, part: sentence})

    def _require_something_in_common(self) -> None:
        """Raise where the golden run is of no use to any part: it was named by mistake."""
        found = self.findings
        compared = found.comparison.reports if found.comparison is not None else ()
        is_vain = all(report.summary.compared_nothing for report in compared)
        if found.golden is not None and found.location is None and is_vain and self._first_error:
            raise self._first_error

    def _precheck(self) -> None:
        """Precheck the suspects; every call, where no part could look for suspects."""
        found = self.findings
        suspects = suspects_of(found)
        kept = tuple(suspects[:MOST_SUSPECTS])
        self._keep(suspects=kept, left_out=len(suspects) - len(kept))
        if not kept and (found.location is not None or found.comparison is not None):
            return
        for dump in found.dumps:
            own = [suspect for suspect in kept if suspect.dump == dump]
            if own or not kept:
                self._precheck_dump(dump, own)

    def _precheck_dump(self, dump: FoundDump, suspects: Sequence[Suspect]) -> None:
        place = self.findings.place_of(dump)
        check, reason = self._attempt(
            f"run_ut {dump.label}", lambda: self._parts.precheck(dump, place, suspects)
        )
        if check is not None:
            self._keep(checks=(*self.findings.checks, check))
        else:
            self._keep(unchecked=(*self.findings.unchecked, reason))


_OPERATORS = (RootKind.NON_FINITE, RootKind.OPERATOR, RootKind.ESTIMATE)
_DIRECTIONS = (".forward", ".backward")
# Modules are no calls of operators, and collectives need the other ranks.
_NO_CALLS = ("Module.", "Cell.", "Distributed.", "MintDistributed.")


def suspects_of(findings: Findings) -> list[Suspect]:
    """Return operators to blame, then those that gave birth to NaN or infinity.

    Where the search for the operator to blame could not be done, the first calls that differ from the
    golden run come last.
    """
    by_label = {dump.label: dump for dump in findings.dumps}
    found: dict[tuple[str, str], None] = {}
    for label, key in (*_located(findings), *_born(findings), *_different(findings)):
        call = next((key.removesuffix(end) for end in _DIRECTIONS if key.endswith(end)), "")
        if call and not call.startswith(_NO_CALLS):
            found[label, call] = None
    return [Suspect(by_label[label], call) for label, call in found if label in by_label]


def _located(findings: Findings) -> Iterator[tuple[str, str]]:
    if findings.location is not None:
        for place in findings.location.places:
            if place.root.kind in _OPERATORS:
                yield place.dump.label, place.root.key


def _born(findings: Findings) -> Iterator[tuple[str, str]]:
    if findings.overflow is not None:
        yield from ((row.dump, row.api) for row in findings.overflow.rows if row.is_born)


def _different(findings: Findings) -> Iterator[tuple[str, str]]:
    if findings.location is None and findings.comparison is not None:
        for report in findings.comparison.reports:
            yield from ((report.label, row.name) for row in report.summary.first)
