"""The target `run`: any command, judged by its exit code or by a command that looks at what it left.

Comes in: switches, and a command. Goes out: one rung with these switches. Called by `commands.bisect`.
"""

import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ray_precheck.commands.bisect.measure import judged_by
from ray_precheck.commands.bisect.options import RAISE, BisectConfig
from ray_precheck.commands.bisect.target import Lines, Survey, TrialResult
from ray_precheck.commands.bisect.targets.command.switches import (
    Wiring,
    parse_switches,
    switches_in,
)
from ray_precheck.commands.bisect.trial_process import signal_name
from ray_precheck.errors import UsageError
from ray_precheck.options.declared import Takes, option
from ray_precheck.processes import launch
from ray_precheck.searching.bisection import Answer, Finding, Rung, Trial

# Exit codes of a shell whose command cannot be started, and git bisect's for "cannot tell".
_UNRESOLVED = {125: "it says that it cannot tell", 126: "cannot be executed", 127: "is not there"}
# Exit codes of this package's own commands that say nothing of the numbers.
_OWN = {2: "wrong usage or input", 3: "it was stopped", 4: "nothing could be checked"}


def _words(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text))


def _without_dashes(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(words[1:] if words[:1] in (["--"], ("--",)) else words)


@dataclass(frozen=True, kw_only=True)
class CommandOptions:
    """What is run, and what can be switched."""

    section: ClassVar[str] = "what is run"

    switch: tuple[str, ...] = option(
        (),
        "--switch",
        help="env:NAME=ON|OFF, arg:ON|OFF, line:FILE:TEXT or py:MODULE.NAME=ON|OFF; may be given again",
        takes=Takes.EACH,
        metavar="SWITCH",
    )
    switches: Path | None = option(
        None, "--switches", help="a file with a switch in each line", metavar="FILE", becomes=Path
    )
    check: tuple[str, ...] = option(
        (),
        "--check",
        help="a command that judges each trial: exit code 0 right, 125 cannot tell, else wrong",
        metavar="CMD",
        becomes=_words,
        rows="check",
    )
    command: tuple[str, ...] = option(
        (),
        "command",
        help="the command, behind --",
        takes=Takes.REST,
        metavar="COMMAND",
        becomes=_without_dashes,
        rows="command",
    )


@dataclass(frozen=True)
class CommandConfig(CommandOptions, BisectConfig):
    """The settings of a search whose trials run a command."""


@dataclass(frozen=True, slots=True)
class CommandOpener:
    """Opens a runner of commands."""

    wiring: Wiring
    check: tuple[str, ...]
    fail_on: str
    timeout_s: float
    folder: str

    def open(self, scratch: Path) -> "CommandRunner":
        """Return a runner."""
        return CommandRunner(self, scratch)


@dataclass(slots=True)
class CommandRunner:
    """Runs a command for each trial, in the folder where `bisect` was started."""

    opener: CommandOpener
    scratch: Path
    number: int = 0

    def run(self, trial: Trial, rung: Rung) -> TrialResult:
        """Run the command with these switches on and return what it says."""
        self.number += 1
        folder = self.scratch / str(self.number)
        folder.mkdir()
        env = {**os.environ, "BISECT_TRIAL": str(folder)}
        words, env = self.opener.wiring.command_of(trial.enabled, env, folder)
        until_s = 0.9 * self.opener.timeout_s
        code, said = ended_by(words, env, self.opener.folder, until_s, folder / "output")
        if code is None:
            return self._unresolved(said, said)
        if not self.opener.check:
            return self._judged(code, words, said)
        env["BISECT_EXIT"] = str(code)
        return judged_by(self.opener.check, env, until_s)

    def _judged(self, code: int, words: Sequence[str], said: str) -> TrialResult:
        if code < 0:
            name = signal_name(code)
            return self._unresolved(name, f"it was ended by {name}")
        silent = _UNRESOLVED | (_OWN if Path(words[0]).name == "ray-precheck" else {})
        if code in silent:
            return self._unresolved(str(code), f"{words[0]}: {silent[code]}")
        answer = Answer.FAIL if code else Answer.PASS
        return TrialResult(answer, str(code), message=said if code else "")

    def _unresolved(self, end: str, why: str) -> TrialResult:
        fails = self.opener.fail_on == RAISE
        return TrialResult(Answer.FAIL if fails else Answer.UNRESOLVED, end, message=why)

    def close(self) -> None:
        """Do nothing: every command has ended."""


def ended_by(
    words: Sequence[str], env: dict[str, str], folder: str, timeout_s: float, output: Path
) -> tuple[int | None, str]:
    """Run a command to its end; return its exit code (negative: a signal; None: there is none) and its last
    line. All processes that it has started in its session end with it."""
    with output.open("wb") as file:

        def start() -> "subprocess.Popen[bytes]":
            return subprocess.Popen(
                list(words),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=folder,
                start_new_session=True,
            )

        try:
            process = launch(start)
        except OSError as error:
            return (126 if isinstance(error, PermissionError) else 127), error.strerror or ""
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None, "timeout"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = [
        line for line in output.read_bytes()[-4096:].decode(errors="replace").splitlines() if line
    ]
    return code, lines[-1][:300] if lines else ""


class CommandTarget:
    """Any command."""

    name = "run"
    text = "any command, by switches of its environment, its words or its files"
    config = CommandConfig

    def survey(self, config: CommandConfig, scratch: Path, say: Callable[[str], None]) -> Survey:
        """Read the switches."""
        command = config.command
        if not command:
            raise UsageError(
                "the command is missing: ray-precheck bisect run --switch ... -- COMMAND"
            )
        asked = [*config.switch, *(switches_in(config.switches) if config.switches else ())]
        if not asked:
            raise UsageError(
                "there is nothing to switch: name switches with --switch or --switches"
            )
        switches, wired = parse_switches(asked)
        rung = Rung("switches", switches)
        return Survey((rung,), facts=Wiring(wired, tuple(command)))

    def opener(self, config: CommandConfig, survey: Survey) -> CommandOpener:
        """Return what opens runners of the command."""
        return CommandOpener(
            survey.facts, config.check, config.fail_on, config.timeout_s, os.getcwd()
        )

    def further(
        self, config: CommandConfig, survey: Survey, found: Sequence[Finding], scratch: Path
    ) -> Sequence[Rung]:
        """Return (): there is nothing behind the switches."""
        return ()

    def lines(self, config: CommandConfig, survey: Survey, finding: Finding) -> Lines:
        """Return how the switches of the cure are switched off."""
        off = [each for each in finding.rung.switches if each.name in finding.cure]
        return Lines(code=tuple(line for each in off for line in each.lines))

    def close_up(
        self,
        config: CommandConfig,
        survey: Survey,
        found: Sequence[Finding],
        out: Path,
        scratch: Path,
    ) -> Iterator[str]:
        """Yield nothing."""
        return iter(())


TARGET = CommandTarget()
