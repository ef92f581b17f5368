"""The fuzzer finds nothing in hundreds of mutated dumps, and would find what it is there for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from records import NEEDS_MINDSPORE

pytestmark = pytest.mark.frameworks

ROOT = Path(__file__).parents[2]
KINDS = ("named pipe", "/dev/zero", "socket", "folder", "standard input")


def run_code(code: str, folder: Path) -> str:
    """Run code beside the fuzzer, in a process of its own: an audit hook cannot be taken off."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@NEEDS_MINDSPORE
@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", ["200", pytest.param("2000", marks=pytest.mark.exhaustive)])
def test_mutated_dumps_are_rows_or_refusals(tmp_path: Path, count: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.fuzz", "--count", count, "--seed", "1", "--jobs", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = [line for line in done.stdout.splitlines() if line.startswith("all ")]
    assert last[0].split()[1] == count
    assert last[0].split()[-1] == "0"
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", ["300", pytest.param("5000", marks=pytest.mark.exhaustive)])
def test_mutated_captures_of_other_tools_are_dumps_or_sentences(tmp_path: Path, count: str) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "scripts.fuzz.foreign",
            "--count",
            count,
            "--seed",
            "1",
            "--jobs",
            "2",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = [line for line in done.stdout.splitlines() if line.startswith("all ")]
    assert last[0].split()[1] == count
    assert last[0].split()[-1] == "0"
    assert "Traceback" not in done.stderr


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS if "EVERY" in os.environ else KINDS[:1])
def test_what_is_no_regular_file_is_refused_wherever_a_command_opens_one(
    tmp_path: Path, kind: str
) -> None:
    place = str(ROOT / "tests" / "unit" / "hostile")
    code = (
        f"sys.path.append({place!r})\nfrom special_files import examine_special\n"
        f"print(examine_special({kind!r}))"
    )
    assert run_code(code, tmp_path).splitlines()[-1] == "[]"


def test_a_case_is_the_same_whatever_came_before_it(tmp_path: Path) -> None:
    code = (
        "import hashlib\nfrom scripts.fuzz import main as fuzz\n"
        "captures = [fuzz.mutations.read_capture(path) for path in fuzz.CAPTURES]\n"
        "def case(n): return hashlib.sha256(fuzz.case_of(5, n, captures)[1]).hexdigest()\n"
        "there = {n: case(n) for n in range(1000)}\n"
        "back = {n: case(n) for n in reversed(range(1000))}\n"
        "print([n for n in there if there[n] != back[n]], len(set(there.values())) > 900)\n"
        "print(there[999])"
    )
    first, second = run_code(code, tmp_path), run_code(code, tmp_path)
    assert first.startswith("[] True\n")
    assert first == second


# What a dump must not do, and what the watch says of it.
ACTS = {
    "open('elsewhere', 'w').close()": "to write",
    "open('/etc/passwd').close()": "to read",
    "os.system('true')": "os.system",
    "exec(compile('1', 'foreign', 'exec'))": "ran code of 'foreign'",
    "pickle.loads(pickle.dumps(Path))": "pickle.find_class",
    "subprocess.run(['true'])": "subprocess.Popen",
    "os.mkdir('another')": "os.mkdir",
    "os.symlink('a', 'b')": "os.symlink",
    "socket.socket().close()": "socket.",
}
# What the driver must not raise, and what is found.
FAULTS = {
    "raise KeyError('fault')": "KeyError in",
    "raise SystemExit(3)": "SystemExit in",
    "raise MemoryError": "MemoryError in",
    "x = bytearray(3 << 30)": "MemoryError in",
    "raise DumpError('two\\nlines\\x1b')": "no sentence",
    "raise DumpError('long' * 2000)": "no sentence",
    "raise DumpError('a fine sentence')": "refused",
}


def findings(prelude: str, tries: list[str], folder: Path) -> list[str]:
    """Return what each of these blocks finds, or has in `result`; they run in one process."""
    code = f"import json\nfrom scripts.fuzz import main as fuzz, target as fuzz_target\n{prelude}"
    code += "found = []\n"
    for block in tries:
        code += f"result = 'nothing'\ntry:\n{block}\n"
        code += "except fuzz_target.Finding as finding:\n    result = str(finding)\n"
        code += "found.append(result)\n"
    texts: list[str] = json.loads(run_code(code + "print(json.dumps(found))", folder))
    assert len(texts) == len(tries)
    return texts


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the watch says of each act."""
    prelude = (
        "import os, pickle, socket, subprocess\nfrom pathlib import Path\n"
        "watch = fuzz_target.Watch(Path('in'), Path('out'))\n"
    )
    tries = [f"    with watch.over():\n        {act}" for act in ACTS]
    found = findings(prelude, tries, tmp_path_factory.mktemp("heard"))
    return dict(zip(ACTS, found, strict=True))


@pytest.mark.parametrize("act", ACTS)
def test_the_watch_hears_what_a_dump_must_not_do(heard: dict[str, str], act: str) -> None:
    assert ACTS[act] in heard[act]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What is told of each fault of the driver."""
    prelude = (
        "from pathlib import Path\nfrom ray_precheck.errors import DumpError\n"
        "folder = Path('case'); folder.mkdir(); fuzz_target.make_folder(folder.resolve(), [])\n"
        "target = fuzz_target.Target(folder.resolve(), lambda stage: None)\n"
    )
    tries = [
        f"    def broken(path):\n        {fault}\n    fuzz_target.open_dump = broken\n"
        "    result = target.examine(b'{}', False)"
        for fault in FAULTS
    ]
    found = findings(prelude, tries, tmp_path_factory.mktemp("told"))
    return dict(zip(FAULTS, found, strict=True))


@NEEDS_MINDSPORE
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_driver_is_a_finding(told: dict[str, str], fault: str) -> None:
    assert FAULTS[fault] in told[fault]
