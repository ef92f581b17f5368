"""What is no regular file, at every place where a command opens what a user names.

A pipe that nobody writes to, /dev/zero, a socket, a folder and the standard input stand where a dump, a
table or a setting is expected. Each command must end soon, in one of its exit codes, without a traceback and
without much memory. Each case runs in a fork of this process. Called by `test_hostile_special` and
`test_fuzz`.
"""

import contextlib
import multiprocessing
import os
import resource
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ray_precheck.store.tables import API_TABLES, header
from scripts.measuring import CAPTURES

LIMIT_S = 30.0
MEMORY_BYTES = 8 << 30
_STAMP = "20260101000000"
_TABLE, _OTHERS = f"accuracy_checking_result_{_STAMP}.csv", f"accuracy_checking_{_STAMP}"
_COMPARE = "compare -tp target/dump.json -gp golden/dump.json -o out"
# For a device that is not there, so that nothing is run.
_CHECK = "run_ut -api_info target/dump.json -o out --device-type npu"
# Where a special file stands, and the command that comes across it.
PLACES = {
    "a dump to check": ("x", "run_ut -api_info x -o out"),
    "a dump to list": ("x", "run_ut -api_info x --list"),
    "a dump to compare": ("x", "compare -tp x -gp golden/dump.json -o out"),
    "a dump to compare with": ("x", "compare -tp target/dump.json -gp x -o out"),
    "a dump to locate in": ("x", "locate -tp x -gp golden/dump.json -o out"),
    "a dump to look for births in": ("x", "overflow_check x -o out"),
    "a dump to diagnose": ("x", "diagnose -tp x -gp golden/dump.json -o out"),
    "a dump to replay": ("x", "run_overflow_check -api_info x -o out"),
    "a dump of two kinds of kernels": ("x", "naive x -o out"),
    "a dump in a folder of ranks": ("ranks/rank1/dump.json", "overflow_check ranks -o out"),
    "stack.json": ("target/stack.json", _COMPARE),
    "construct.json": ("target/construct.json", _COMPARE),
    "construct.json of births": ("target/construct.json", "overflow_check target -o out"),
    "sketches.npy": ("target/sketches.npy", _COMPARE),
    "a tensor": (
        "target/dump_tensor_data/Functional.linear.0.forward.output.0.pt",
        _COMPARE,
    ),
    "api mapping": ("x", f"{_COMPARE} -am x"),
    "cell mapping": ("x", f"{_COMPARE} -cm x"),
    "data mapping": ("x", f"{_COMPARE} -dm x"),
    "a noise capture": ("x", f"{_COMPARE} --noise x"),
    "-config": ("x", f"{_CHECK} -config x"),
    "--bench-module": ("x", f"{_CHECK} --bench-module x"),
    "--standard": ("x.yaml", f"{_CHECK} --standard x.yaml"),
    "a table to go on in": (f"out/{_TABLE}", f"{_CHECK} -csv_path out/{_TABLE}"),
    "its details": (
        f"out/accuracy_checking_details_{_STAMP}.csv",
        f"{_CHECK} -csv_path out/{_TABLE}",
    ),
    "its settings": (f"out/{_OTHERS}.run.json", f"{_CHECK} -csv_path out/{_TABLE}"),
    "its lock": (f"out/{_OTHERS}.lock", f"{_CHECK} -csv_path out/{_TABLE}"),
    "a table to sum up": (f"out/{_TABLE}", f"summary out/{_TABLE}"),
    "a timeline to sum up": (
        f"out/{_OTHERS}.timeline.json",
        f"summary out/{_TABLE} --junit j.xml",
    ),
    "details to compare": ("x", "compare_results x x -o out"),
    "a saved call": ("x", "repro x"),
    "the log of a capture": ("capture/dump.jsonl", "capture --finish capture"),
}


def special_files(folder: Path) -> dict[str, Callable[[Path], None]]:
    """Return what makes each kind of special file at a path; `folder` is a short one, for the socket."""

    def bound(path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(folder / "s"))
        (folder / "s").rename(path)

    return {
        "named pipe": os.mkfifo,
        "/dev/zero": lambda path: path.symlink_to("/dev/zero"),
        "socket": bound,
        "folder": Path.mkdir,
        "standard input": lambda path: path.symlink_to("/dev/stdin"),
    }


def examine_special(kind: str, places: Iterable[str] = PLACES) -> list[str]:
    """Return a sentence for each place at which a kind of file does what must not be."""
    findings = []
    with tempfile.TemporaryDirectory(prefix="special-") as name:
        root = Path(name)
        make = special_files(root)[kind]
        for place in places:
            where, command = PLACES[place]
            folder = root / "w"
            _prepare(folder)
            path = folder / where
            path.unlink(missing_ok=True)
            make(path)
            found = _found(folder, command)
            shutil.rmtree(folder)
            if found:
                findings.append(f"{kind} as {place} ({command}): {found}")
    return findings


def _prepare(folder: Path) -> None:
    for each in ("target", "golden"):
        shutil.copytree(CAPTURES / "torch_llm_tensor", folder / each)
    for each in ("ranks/rank0", "ranks/rank1"):
        (folder / each).mkdir(parents=True)
        shutil.copy(CAPTURES / "torch_cnn" / "dump.json", folder / each)
    (folder / "capture").mkdir()
    (folder / "out").mkdir()
    (folder / "out" / _TABLE).write_bytes(header(API_TABLES.result))


def _found(folder: Path, command: str) -> str:
    """Return what is wrong with a command, "" for nothing."""
    process = multiprocessing.get_context("fork").Process(target=_run, args=(folder, command))
    process.start()
    process.join(LIMIT_S)
    if process.is_alive():
        process.kill()
        process.join()
        return f"no end in {LIMIT_S:g} s"
    said = (folder / "said").read_text(errors="replace").strip()
    if process.exitcode not in range(5) or "Traceback" in said or "internal error" in said:
        return f"exit code {process.exitcode}: {said[-600:]}"
    return ""


def _run(folder: Path, command: str) -> None:
    from ray_precheck.cli import main

    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with _standard_input(), open("said", "w") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        code = main(command.split())
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@contextlib.contextmanager
def _standard_input() -> Iterator[None]:
    """Have a pipe to which nobody writes as the standard input."""
    ours, theirs = os.pipe()
    os.dup2(ours, 0)
    yield
    os.close(theirs)
