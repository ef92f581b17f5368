"""A script that runs as it would alone, and is captured.

Comes in: the words of a command, and the settings of the capture. Goes out: the exit code of the script, and
at its end one sentence about what was captured. Called by the command `capture`.

The script is a child of this process, with the same standard streams, in the same group of processes.
Signals are passed on to it; what ends it by a signal ends this process in the same way. `PYTHONPATH` begins
with the folder `start`, whose `sitecustomize` each Python of the script runs.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ray_precheck.capture.account import closing_sentence, read_accounts
from ray_precheck.capture.capturing import captured_frameworks
from ray_precheck.capture.process import started
from ray_precheck.capture.settings import CaptureSettings, settings_to_json
from ray_precheck.capture.start.sitecustomize import FRAMEWORKS, VARIABLE
from ray_precheck.capture.writing.claim import earlier_dumps
from ray_precheck.errors import UsageError
from ray_precheck.processes import end_with_parent

_START = Path(__file__).parent / "start"
_ROOT = Path(__file__).parents[2]
_PASSED_ON = (
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
# Options of Python with which it does not look at PYTHONPATH, or runs no sitecustomize.
_DEAF = ("-S", "-I", "-E")
_WITH_A_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def run_captured(
    words: Sequence[str], settings: CaptureSettings, tell: Callable[[str], None]
) -> int:
    """Run a script until its end, tell what was captured, and return its exit code.

    A script that was ended by a signal ends this process by the same one.

    Raises:
        UsageError: there is no such program or script.
    """
    program = program_of(words)
    with tempfile.TemporaryDirectory(prefix="ray_precheck_capture_") as notes:
        began = time.time()
        variables = environment(settings, Path(notes), began)
        status = run_program([program, *words[1:]], variables)
        tell(sentence_of(settings, Path(notes), began, words))
    return status if status >= 0 else end_by(-status)


def environment(
    settings: CaptureSettings,
    notes: Path,
    began: float,
    frameworks: Mapping[str, str] | None = None,
    **more: object,
) -> dict[str, str]:
    """Return the environment of a script that is captured. Its processes begin when they import the package
    of one of the `frameworks`, by default of all that calls can be checked of; `more` is handed to them."""
    # `notes` comes first: sitecustomize reads it without json.
    text = json.dumps(
        {
            "notes": str(notes),
            "root": str(_ROOT),
            "began": began,
            "settings": settings_to_json(settings),
            **more,
        }
    )
    before = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(filter(None, (str(_START), before)))
    if frameworks is None:
        frameworks = {each.package: each.name for each in captured_frameworks()}
    names = " ".join(map("=".join, frameworks.items()))
    return {**os.environ, VARIABLE: text, FRAMEWORKS: names, "PYTHONPATH": path}


def program_of(words: Sequence[str]) -> str:
    """Return the path of the program, and require that a script of Python is there.

    Raises:
        UsageError: it is not.
    """
    program = shutil.which(words[0])
    if program is None:
        path = Path(words[0])
        if path.is_file():
            how = f"python {path}" if path.suffix == ".py" else f"chmod +x {path}"
            raise UsageError(f"{path} is a file that cannot be run by itself; try {how}")
        raise UsageError(
            f"the script {words[0]} is not found; the words after -- are run as they are"
        )
    script = _script_of(words)
    if script is not None and not os.path.exists(script):
        raise UsageError(f"the script {script} of {words[0]} is not found")
    return program


def _options_of(words: Sequence[str]) -> list[str]:
    """Return the options that stand between Python and its script."""
    found: list[str] = []
    rest = list(words[1:])
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        found.append(word)
        if word in _WITH_A_VALUE and rest:
            found.append(rest.pop(0))
        if word in ("-c", "-m"):
            break
    return found


def _is_python(words: Sequence[str]) -> bool:
    return Path(words[0]).name.rstrip("0123456789.") in ("python", "pypy")


def _script_of(words: Sequence[str]) -> str | None:
    """Return the file that Python is to run, None where it runs something else."""
    if not _is_python(words):
        return None
    options = _options_of(words)
    rest = words[1 + len(options) :]
    if not rest or rest[0] == "-" or {"-c", "-m", "-V", "--version", "-h", "--help"} & {*options}:
        return None
    return rest[0]


def run_program(words: Sequence[str], variables: dict[str, str]) -> int:
    """Run a program and return how it ended: its exit code, or minus its signal."""
    awaited = {*_PASSED_ON, signal.SIGCHLD}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    parent = os.getpid()

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        end_with_parent(parent)

    try:
        child = subprocess.Popen(words, env=variables, preexec_fn=prepare)
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise UsageError(f"{words[0]} cannot be run: {error.strerror or error}") from None
    while child.poll() is None:
        told = signal.sigwaitinfo(awaited)
        # What a terminal sends (Ctrl-C) both get, by the kernel: a code above 0 (sigaction(2)).
        is_of_terminal = told.si_code > 0 and told.si_signo in (signal.SIGINT, signal.SIGQUIT)
        if told.si_signo != signal.SIGCHLD and not is_of_terminal:
            with suppress(ProcessLookupError):
                child.send_signal(told.si_signo)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return child.returncode


def sentence_of(settings: CaptureSettings, notes: Path, began: float, words: Sequence[str]) -> str:
    """Return the sentence about what all processes of a script captured."""
    processes, accounts = started(notes), read_accounts(notes)
    if not processes and not accounts:
        deaf = [word for word in _options_of(words) if word in _DEAF] if _is_python(words) else []
        why = (
            f"Python was started with {deaf[0]}, by which it leaves the capture out"
            if deaf
            else "no Python was started that looks at PYTHONPATH (its options -S, -I and -E keep the"
            " capture out)"
        )
        return f"nothing was captured: {why}; use ray_precheck.capture.Capture in the script"
    wrote = any(account.captured or account.is_open for account in accounts)
    left = earlier_dumps(settings.path, began) if wrote and not settings.watch else []
    return closing_sentence(settings, accounts, left)


def end_by(number: int) -> int:
    """End this process by a signal, as the script was; without a second core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number
