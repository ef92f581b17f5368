"""Feed mutated captures of other tools to their readers; see that a dump or one sentence comes out.

    python -m scripts.fuzz.foreign --count 20000
    python -m scripts.fuzz.foreign --only 7:1234         one case again, with its traceback

Each case is read in a child process: a traceback, more than 1 GiB of memory beyond the size of its files, a
hang, code that is run, a file that is written outside of the cache, or one that is read outside of the
capture is a finding.
"""

import argparse
import contextlib
import io
import os
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from ray_precheck.dump.folders import DUMP_FILE
from ray_precheck.dump.mapped import MappedTensors
from ray_precheck.errors import DumpError, NotCheckable
from ray_precheck.formats.conversion import as_our_dump
from ray_precheck.trace.difference.measuring import dtype_of
from ray_precheck.trace.side import open_side
from scripts.fuzz.main import CONTEXT, SHARED_MEMORY, Examined, Examiner, peak_mib
from scripts.fuzz.samples import LINKS, Files, mutated, samples
from scripts.fuzz.target import (
    ALLOWANCE_BYTES,
    DRIVER,
    LONGEST_SENTENCE,
    Finding,
    Watch,
    empty,
    limit_memory,
    require_sentence,
    where,
)

OUTCOMES = ("refused", "read", "unknown", "finding")
# Elements of a tensor that are looked at.
_LOOKED_AT = 1 << 16


class CacheWatch(Watch):
    """A watch that lets unfinished folders of the cache be removed."""

    _FORBIDDEN = tuple(each for each in Watch._FORBIDDEN if each != "shutil.")
    _WRITES = (*Watch._WRITES, "shutil.rmtree", "shutil.copyfile", "shutil.move")


class Readers:
    """What reads captures, and the watch over it; made once for a process."""

    def __init__(self, folder: Path) -> None:
        self._in, self._cache = folder / "in", folder / "cache"
        for each in (self._in, self._cache):
            each.mkdir()
        (folder / "aside").mkdir()
        self._beside = [folder / "secret.npy", folder / "aside" / "x.npy"]
        for each in self._beside:
            each.write_bytes(b"secret")
        os.environ["XDG_CACHE_HOME"] = str(self._cache)
        self._watch = CacheWatch(self._in, self._cache)

    def warm(self, all_samples: dict[str, Files]) -> None:
        """Read each sample, so that what is imported on the way is imported before anything is watched.

        Raises:
            Finding: one of them cannot be read.
        """
        for name, files in all_samples.items():
            self._lay(files)
            try:
                with contextlib.redirect_stderr(io.StringIO()):
                    outcome = self._read()
                if outcome != "read":
                    raise Finding(f"the sample {name} is not read")
            except DumpError as error:
                raise Finding(f"the sample {name} is refused: {error}") from error

    def examine(self, files: Files) -> str:
        """Return what became of a capture.

        Raises:
            Finding: see this module.
        """
        self._lay(files)
        said = io.StringIO()
        try:
            limit_memory(ALLOWANCE_BYTES + sum(map(len, files.values())))
            with self._watch.over(), contextlib.redirect_stderr(said):
                outcome = self._read()
        except DumpError as error:
            require_sentence(str(error), LONGEST_SENTENCE)
            return "refused"
        except (Finding, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise Finding(where(error)) from error
        finally:
            limit_memory(None)
        if not all(each.read_bytes() == b"secret" for each in self._beside):
            raise Finding("a file beside the capture was changed")
        for line in said.getvalue().splitlines():
            require_sentence(line, LONGEST_SENTENCE)
        return outcome

    def _lay(self, files: Files) -> None:
        for folder in (self._in, self._cache):
            empty(folder)
        for name, content in files.items():
            path = self._in / name
            with contextlib.suppress(OSError):  # Such as a name that is too long.
                path.parent.mkdir(parents=True, exist_ok=True)
                if not path.parent.resolve().is_relative_to(self._in):
                    continue  # Nothing is laid behind a link.
                if content == b"->pipe":
                    os.mkfifo(path)
                elif content in LINKS:
                    path.symlink_to(path if content == b"->loop" else content[2:].decode())
                else:
                    path.write_bytes(content)

    def _read(self) -> str:
        """Read what lies there; the only file is named itself."""
        there = list(self._in.iterdir())
        path = there[0] if len(there) == 1 and not there[0].is_dir() else self._in
        dump = as_our_dump(path)
        if dump == path and not (dump / DUMP_FILE).exists():
            return "unknown"
        with open_side(dump / DUMP_FILE) as side:
            tensors = MappedTensors(side.data_folder)
            for entry in side.entries:
                for item in side.items(entry):
                    dtype = dtype_of(item.dtype) if item.is_tensor else None
                    if dtype is not None and item.file:
                        with contextlib.suppress(NotCheckable):
                            found = tensors.open(item.spec(dtype))
                            found.carrier(found.raw[:_LOOKED_AT])
        return "read"


def foreign_case(seed: int, number: int, all_samples: dict[str, Files]) -> tuple[str, Files]:
    """Return the name of a case's sample, and its files."""
    random = Random(f"{seed}:{number}")
    name = random.choice(sorted(all_samples))
    return name, mutated(all_samples[name], random)


def foreign_child(pipe: Any, state: Any, seed: int, place: Path) -> None:
    """Examine the cases whose numbers come through a pipe; see `main.child`."""
    all_samples = samples()
    with tempfile.TemporaryDirectory(dir=place) as name:
        folder = Path(name).resolve()
        readers = Readers(folder)
        readers.warm(all_samples)
        (folder / "here").mkdir()
        os.chdir(folder / "here")
        pipe.send(None)
        while True:
            number, _ = pipe.recv()
            _, files = foreign_case(seed, number, all_samples)
            state[0], state[1] = DRIVER, time.monotonic()
            begin, outcome, text = time.perf_counter(), "finding", ""
            try:
                outcome = readers.examine(files)
            except Finding as finding:
                text = str(finding)
            if not text and os.listdir():
                outcome, text = "finding", f"files in the current folder: {os.listdir()[:3]}"
            pipe.send(Examined(outcome, text, time.perf_counter() - begin, peak_mib()))
            state[0], state[1] = 0, time.monotonic()


def _share(options: argparse.Namespace, place: Path, first: int) -> dict[int, Examined]:
    examiner = Examiner(foreign_child, options.seed, place)
    numbers = range(first, options.count, options.jobs)
    found = {number: examiner.examine(number) for number in numbers}
    examiner.end()
    return found


def _table(seed: int, cases: dict[int, Examined], took_s: float) -> str:
    all_samples = samples()
    counts: dict[str, Counter[str]] = {name: Counter() for name in sorted(all_samples)}
    for number, each in cases.items():
        counts[foreign_case(seed, number, all_samples)[0]][each.outcome] += 1
    width = max(map(len, counts))
    lines = [f"{'capture':{width}}" + "".join(f"{name:>10}" for name in ("cases", *OUTCOMES))]
    for name, found in [*counts.items(), ("all", sum(counts.values(), Counter()))]:
        numbers = [found.total(), *(found[outcome] for outcome in OUTCOMES)]
        lines.append(f"{name:{width}}" + "".join(f"{number:10}" for number in numbers))
    peak = max((each.mib for each in cases.values()), default=0)
    slowest = max((each.seconds for each in cases.values()), default=0)
    lines.append(
        f"{len(cases) / max(took_s, 1e-9):.0f} cases/s; peak memory {peak:.0f} MiB; slowest {slowest:.2f} s"
    )
    return "\n".join(lines)


def main() -> int:
    """Run the fuzzer; returns 1 where there is a finding."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", metavar="SEED:NUMBER", help="read one case in this process")
    options = parser.parse_args()
    place = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=place) as name:
        if options.only:
            seed, number = map(int, options.only.split(":"))
            sample, files = foreign_case(seed, number, samples())
            print(f"{sample}: { ({each: raw[:200] for each, raw in files.items()}) }")
            readers = Readers(Path(name).resolve())
            readers.warm(samples())
            print(readers.examine(files))
            return 0
        CONTEXT.set_forkserver_preload(["torch", "scripts.fuzz.samples", "ray_precheck.trace.side"])
        begin = time.monotonic()
        with ThreadPoolExecutor(options.jobs) as pool:
            shares = pool.map(partial(_share, options, Path(name)), range(options.jobs))
            cases = {number: each for share in shares for number, each in share.items()}
        took_s = time.monotonic() - begin
    for number, each in sorted(cases.items()):
        if each.text:
            print(f"finding {options.seed}:{number}: {each.text}")
    print(_table(options.seed, cases, took_s))
    return 1 if any(each.text for each in cases.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
