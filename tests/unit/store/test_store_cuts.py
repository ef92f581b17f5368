"""Both files of a run, cut anywhere, each on its own: a resume ends with the undisturbed bytes."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_results import contents, encoded, files_in, open_journal, passed

from ray_precheck.errors import ResumeError
from ray_precheck.schema.result import Outcome, TaskResult, Verdict, failed, skipped
from ray_precheck.store.resume import resume_run
from ray_precheck.store.settings import RunSettings, save_settings
from ray_precheck.store.tables import RunFiles

pytestmark = pytest.mark.unit

FINGERPRINT = {"dump": "d1", "framework": "mindspore", "seed": "0"}
NAMES = ["Mint.add.1", "Mint.add.10", "=Tensor.__add__.3", 'Mint.odd"\r\n,name.1', "F.é.0", "X.y.0"]
Contents = tuple[bytes, bytes]
# In memory where there is such a place: some file systems flush at every rename.
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@pytest.fixture(autouse=True, scope="module")
def _no_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as path:
        yield Path(path)


def result_of(index: int, name: str, outputs: int, kind: str) -> TaskResult:
    """A result of a kind; those that were compared have so many detail rows."""
    if kind == "skip":
        return skipped(index, name, "forward.output.0: no such file, so it is not checked", True)
    if kind == "crash":
        return failed(index, name, Outcome.CRASHED, "killed its worker (SIGSEGV)", True)
    if kind == "raised":
        return failed(index, name, Outcome.RAISED, "the device raised", False)
    result = passed(index, name, outputs=max(outputs, kind != "pass"))
    if kind == "pass":
        return result
    # In error both ways: no cell says pass, but the message names an output that was compared.
    message = "forward.output.0: MaxAbsErr 1.0 is too large; backward: the device raised"
    return replace(result, forward=Verdict.ERROR, backward=Verdict.ERROR, message=message)


def written(folder: Path, batches: Sequence[Sequence[TaskResult]], *, complete: bool) -> RunFiles:
    """The files of a run after these batches."""
    files = files_in(folder)
    save_settings(files.settings, RunSettings(FINGERPRINT))
    journal = open_journal(files)
    for batch in batches:
        journal.append(encoded(batch))
    if complete:
        journal.complete(NAMES)
    journal.close()
    return files


def cut(files: RunFiles, data: Contents, cuts: tuple[int, int]) -> None:
    files.result.write_bytes(data[0][: cuts[0]])
    files.details.write_bytes(data[1][: cuts[1]])


def gone_on_with(files: RunFiles, results: Sequence[TaskResult]) -> tuple[set[str], Contents]:
    """Resume, write what is missing, and complete; returns what was done, and both files."""
    done = resume_run(files, set(NAMES), FINGERPRINT)
    journal = open_journal(files)
    journal.append(encoded([result for result in reversed(results) if result.name not in done]))
    journal.complete(NAMES)
    return done, contents(files)


kinds = st.sampled_from(["pass", "pass", "pass", "error", "skip", "crash", "raised"])


@st.composite
def journals(draw: st.DrawFn) -> list[list[TaskResult]]:
    """Batches of results in any order."""
    order = draw(st.permutations(range(len(NAMES))))
    results = [result_of(i, NAMES[i], draw(st.integers(0, 5)), draw(kinds)) for i in order]
    ends = sorted({*draw(st.sets(st.integers(1, len(NAMES) - 1))), len(NAMES)})
    return [results[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@settings(max_examples=300, deadline=None)
@given(st.data(), journals(), st.booleans())
def test_files_that_were_cut_anywhere_end_with_the_undisturbed_bytes(
    data: st.DataObject, batches: list[list[TaskResult]], complete: bool
) -> None:
    results = [result for batch in batches for result in batch]
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        undisturbed = contents(written(Path(folder), batches, complete=True))
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        files = written(Path(folder), batches, complete=complete)
        state = contents(files)
        for crash in ("first", "second"):
            cuts = tuple(data.draw(st.integers(0, len(part)), f"{crash} cut") for part in state)
            cut(files, state, (cuts[0], cuts[1]))
            if crash == "first":  # Killed once more, after some of what is missing.
                done = resume_run(files, set(NAMES), FINGERPRINT)
                journal = open_journal(files)
                journal.append(encoded([one for one in results[:4] if one.name not in done]))
                journal.close()
                state = contents(files)
        assert gone_on_with(files, results)[1] == undisturbed


SMALL = [
    result_of(0, NAMES[0], 2, "pass"),
    result_of(1, NAMES[1], 0, "crash"),
    result_of(2, NAMES[2], 1, "error"),
]


@pytest.mark.parametrize("complete", [False, True])
def test_every_byte_of_each_file_may_be_the_last(folder: Path, complete: bool) -> None:
    batches = [[SMALL[2], SMALL[0]], [SMALL[1]]]
    (folder / "other").mkdir()
    undisturbed = contents(written(folder / "other", batches, complete=True))
    files = written(folder, batches, complete=complete)
    state = contents(files)
    saved = files.settings.read_bytes()
    every = [range(len(data) + 1) for data in state]
    # Either file at every byte, the other one behind each of its rows and in the middle of the last.
    some = [_ends_of_rows(data) for data in state]
    pairs = {(a, b) for a in every[0] for b in some[1]} | {
        (a, b) for a in some[0] for b in every[1]
    }
    for cuts in pairs:
        cut(files, state, cuts)
        files.settings.write_bytes(saved)
        assert gone_on_with(files, SMALL)[1] == undisturbed, cuts


def _ends_of_rows(data: bytes) -> set[int]:
    return {0, len(data) - 9, *(i + 1 for i, byte in enumerate(data) if byte == ord("\n"))}


def test_files_of_a_completed_run_are_believed_as_they_are(folder: Path) -> None:
    files = written(folder, [SMALL], complete=True)
    before = {path: (path.stat().st_ino, path.read_bytes()) for path in folder.iterdir()}
    assert resume_run(files, set(NAMES[:3]), FINGERPRINT) == set(NAMES[:3])
    after = {path: (path.stat().st_ino, path.read_bytes()) for path in folder.iterdir()}
    assert after == before


def test_the_last_call_with_details_is_done_again_after_an_interruption(folder: Path) -> None:
    files = written(folder, [SMALL], complete=False)
    assert resume_run(files, set(NAMES[:3]), FINGERPRINT) == {NAMES[0], NAMES[1]}


def test_calls_whose_details_are_lost_are_done_again(folder: Path) -> None:
    files = written(folder, [SMALL], complete=False)
    files.details.unlink()
    assert resume_run(files, set(NAMES[:3]), FINGERPRINT) == {NAMES[1]}


@pytest.mark.parametrize("complete", [False, True])
def test_a_settings_file_cut_anywhere_stops_the_resume_only_where_a_setting_is_lost(
    folder: Path, complete: bool
) -> None:
    files = written(folder, [SMALL], complete=complete)
    state, saved = contents(files), files.settings.read_bytes()
    for end in range(len(saved) + 1):
        cut(files, state, (len(state[0]), len(state[1]) - 1))
        files.settings.write_bytes(saved[:end])
        if not all(b'": "%b"' % value.encode() in saved[:end] for value in FINGERPRINT.values()):
            with pytest.raises(ResumeError, match="so they cannot be compared"):
                gone_on_with(files, SMALL)
            continue
        done, after = gone_on_with(files, SMALL)
        assert NAMES[1] in done, end
        assert len(after[1]) == len(state[1]), end
