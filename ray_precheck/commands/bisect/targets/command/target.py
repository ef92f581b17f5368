"""The target `run`: any command, judged by its exit code, by a command that looks at what it left, or by the
own error of an operator in a capture that it left.

Comes in: switches or commits, and a command. Goes out: one rung with these. Called by `commands.bisect`.
"""

import hashlib
import os
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

from ray_precheck.commands.bisect.measure import judged_by
from ray_precheck.commands.bisect.options import RAISE, BisectConfig
from ray_precheck.commands.bisect.target import Lines, Survey, TrialResult
from ray_precheck.commands.bisect.targets.command.commits import (
    COMMITS,
    Commits,
    commits_of,
    git_environment,
    work_tree,
)
from ray_precheck.commands.bisect.targets.command.own_error import CAPTURE, judge_own_error
from ray_precheck.commands.bisect.targets.command.switches import (
    ATTRIBUTES,
    Wiring,
    parse_switches,
    switches_in,
)
from ray_precheck.commands.bisect.trial_command import CommandEnd, run_command
from ray_precheck.errors import UsageError
from ray_precheck.foreign import read_file
from ray_precheck.options.declared import Number, Takes, option
from ray_precheck.searching.bisection import Rung, RungFinding, Trial, TrialAnswer

# Exit codes of a shell whose command cannot be started, and git bisect's for "cannot tell".
_UNRESOLVED = {
    125: "it cannot tell",
    126: "a program cannot be executed",
    127: "a program is not there",
}
# Exit codes of this package's own commands that say nothing of the numbers.
_OWN = {2: "wrong usage or input", 3: "it was stopped", 4: "nothing could be checked"}
# A trial's own limit ends before that of the worker, which would end its check process.
_SHARE_OF_TIMEOUT = 0.9
# SIGKILL comes from outside, for the machine's memory or by hand: a second one is held against the switches.
_MOST_KILLS = 2


def _words(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text))


def _without_dashes(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(words[1:] if words[:1] in (["--"], ("--",)) else words)


@dataclass(frozen=True, kw_only=True)
class CommandOptions:
    """What is run, what can be switched, and what is wrong."""

    section: ClassVar[str] = "what is run"

    switch: tuple[str, ...] = option(
        (),
        "--switch",
        help="env:NAME=ON|OFF, arg:ON|OFF, line:FILE:TEXT, py:MODULE.NAME=ON|OFF, or a ready list:"
        " list:torch, list:nvidia, list:megengine, list:ascend:FILE; may be given again",
        takes=Takes.EACH,
        metavar="SWITCH",
    )
    switches: Path | None = option(
        None, "--switches", help="a file with a switch in each line", metavar="FILE", becomes=Path
    )
    commits: str = option(
        "",
        "--commits",
        help="instead of switches, the commits behind GOOD up to BAD of the repository here",
        more="Each trial runs in a work tree of its own, which is removed",
        metavar="GOOD..BAD",
    )
    check: tuple[str, ...] = option(
        (),
        "--check",
        help="a command that judges each trial: exit code 0 right, 125 cannot tell, else wrong",
        metavar="CMD",
        becomes=_words,
        rows="check",
    )
    own_error: str = option(
        "",
        "--own-error",
        help="judge by this operator's own error, as locate has it, in the capture that COMMAND leaves in"
        f" $BISECT_TRIAL/{CAPTURE}",
        metavar="API",
        rows="own error",
    )
    tolerance: float | None = option(
        None,
        "--tolerance",
        help="with --own-error: wrong above this many times what rounding explains (default: as locate"
        " judges)",
        type=float,
        metavar="X",
        rule=Number("the tolerance", 0, whole=False),
        rows="tolerance",
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

    def validate(self) -> None:
        """Check the values that can be checked without the files and programs that they name.

        Raises:
            UsageError: names the option, and what to do.
        """
        super().validate()
        if not self.command:
            raise UsageError(
                "the command is missing: ray-precheck bisect run --switch ... -- COMMAND"
            )
        if self.commits and (self.switch or self.switches):
            raise UsageError("--commits and --switch are two searches; give one of them")
        if not (self.commits or self.switch or self.switches):
            raise UsageError(
                "there is nothing to switch: name switches with --switch or --switches, or --commits"
            )
        if self.check and self.own_error:
            raise UsageError("--check and --own-error both judge a trial; give one of them")
        if self.fail_on == RAISE and (self.check or self.own_error):
            raise UsageError(
                "--fail-on raise judges by how COMMAND ends; leave --check and --own-error out"
            )
        if self.tolerance is not None and not self.own_error:
            raise UsageError("--tolerance needs --own-error: it is the limit of that error")


@dataclass(frozen=True, slots=True)
class CommandOpener:
    """Opens a runner of commands. `env` and `folder` are those in which `bisect` was started."""

    config: CommandConfig
    wiring: Wiring
    commits: Commits | None
    env: dict[str, str]
    folder: str

    def open(self, scratch: Path) -> "CommandRunner":
        """Return a runner."""
        return CommandRunner(self, scratch)


@dataclass(slots=True)
class CommandRunner:
    """Runs a command for each trial, in a folder of its own, which is removed."""

    opener: CommandOpener
    scratch: Path
    number: int = 0

    def run(self, trial: Trial, rung: Rung) -> TrialResult:
        """Run the command with these switches on, and return what it says."""
        self.number += 1
        folder = self.scratch / str(self.number)
        folder.mkdir()
        try:
            return self._run(trial, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _run(self, trial: Trial, folder: Path) -> TrialResult:
        opener, config = self.opener, self.opener.config
        until = time.monotonic() + _SHARE_OF_TIMEOUT * config.timeout_s
        env = {**opener.env, "BISECT_TRIAL": str(folder)}
        words, env = opener.wiring.command_of(trial.enabled, env, folder)
        with ExitStack() as held:
            current = Path(opener.folder)
            if opener.commits is not None:
                commit = opener.commits.at(trial.enabled)
                tree = work_tree(opener.commits, commit, self.scratch, folder)
                current = held.enter_context(tree)
                env = git_environment(env) | {"BISECT_COMMIT": commit}
            end = CommandEnd(-signal.SIGKILL)
            for _ in range(_MOST_KILLS):
                if not end.is_killed:
                    break
                left_s = until - time.monotonic()
                end = run_command(words, env, current, left_s, folder / "output")
            problem = attribute_problem(folder / ATTRIBUTES) if _has_attributes(env) else ""
            if problem:
                return TrialResult(TrialAnswer.UNRESOLVED, end.exit, message=problem)
            found = judged_end(end, words, config.fail_on)
            if found.answer is not TrialAnswer.PASS and (config.check or config.own_error):
                # A command that raised says nothing of its result.
                return TrialResult(TrialAnswer.UNRESOLVED, end.exit, message=f"COMMAND: {end.said}")
            left_s = max(1.0, until - time.monotonic())
            if config.check:
                return judged_by(config.check, env, left_s, current)
            if config.own_error:
                return judge_own_error(folder, config.own_error, config.tolerance, left_s)
            return found

    def close(self) -> None:
        """Do nothing: every command has ended."""


def judged_end(end: CommandEnd, words: Sequence[str], fail_on: str) -> TrialResult:
    """Return what the end of a command says: 0 is PASS, another exit code FAIL, and UNRESOLVED is one that
    was ended by a signal or did not end in time, one of a shell that could not start it, 125, and 2, 3 and 4
    of this package's own commands. With `fail_on` "raise" a signal and the time are FAIL."""
    answer = TrialAnswer.FAIL if end.code else TrialAnswer.PASS
    said = end.said
    if end.code is None or end.code < 0:
        answer = TrialAnswer.FAIL if fail_on == RAISE and end.exit else TrialAnswer.UNRESOLVED
    elif end.code in (why := _UNRESOLVED | (_OWN if is_own(words) else {})):
        answer = TrialAnswer.UNRESOLVED
        said = f"{said} ({why[end.code]})"
    return TrialResult(answer, end.exit, message="" if answer is TrialAnswer.PASS else said)


def is_own(words: Sequence[str]) -> bool:
    """Return whether words run a command of this package."""
    pairs = pairwise(words)
    return Path(words[0]).name == "ray-precheck" or ("-m", "ray_precheck") in pairs


def _has_attributes(env: dict[str, str]) -> bool:
    return "BISECT_ATTRIBUTES" in env


def attribute_problem(told: Path) -> str:
    """Return why attributes of `py:` switches were not set, by what the Pythons of a command told of them; ""
    where they were, or where their modules were not imported."""
    if not told.exists():
        return (
            "py: switches reach no Python of COMMAND: it starts none, or one with -I, -E or -S, or another"
            " PYTHONPATH"
        )
    lines = [line.partition(" ") for line in read_file(told).decode(errors="replace").splitlines()]
    missing = next((text for what, _, text in lines if what == "missing"), "")
    known = {text.partition(".")[0] for what, _, text in lines if what == "set"}
    unknown = next((text for what, _, text in lines if what == "unknown" and text not in known), "")
    return missing or (f"no Python of COMMAND has a module {unknown}" if unknown else "")


def require_program(option: str, word: str) -> None:
    """Require that a program can be started.

    Raises:
        UsageError: there is none of this name, or it cannot be executed.
    """
    if shutil.which(word) is None:
        is_there = Path(word).exists()
        why = "it is no program that may be executed" if is_there else "there is no such program"
        raise UsageError(f"{option} {word} cannot be started: {why}")


class CommandTarget:
    """Any command."""

    name = "run"
    text = "any command, by switches of its environment, its words or its files, or by commits"
    config = CommandConfig

    def survey(self, config: CommandConfig, scratch: Path, say: Callable[[str], None]) -> Survey:
        """Read the switches, or the commits."""
        # With commits it may be one that only trials have.
        if not (config.commits and "/" in config.command[0]):
            require_program("COMMAND", config.command[0])
        if config.check:
            require_program("--check", config.check[0])
        if config.commits:
            return _survey_of_commits(config)
        asked = [*config.switch, *(switches_in(config.switches) if config.switches else ())]
        switches, wiring = parse_switches(asked, config.command, os.environ)
        rung = Rung("switches", switches)
        notes = tuple(
            f"neither the command nor the environment names {path}; it finds its copy in"
            f" $BISECT_TRIAL/file{wiring.files.index(path)}"
            for path in wiring.unnamed_files(os.environ)
        )
        digests = {
            f"file {path}": hashlib.sha256(read_file(Path(path))).hexdigest()[:16]
            for path in wiring.files
        }
        return Survey((rung,), notes, digests, facts=(wiring, None))

    def opener(self, config: CommandConfig, survey: Survey) -> CommandOpener:
        """Return what opens runners of the command."""
        wiring, commits = survey.facts
        return CommandOpener(config, wiring, commits, dict(os.environ), os.getcwd())

    def further(
        self, config: CommandConfig, survey: Survey, found: Sequence[RungFinding], scratch: Path
    ) -> Sequence[Rung]:
        """Return (): there is nothing behind the switches."""
        return ()

    def lines(self, config: CommandConfig, survey: Survey, finding: RungFinding) -> Lines:
        """Return how the switches of the cure are switched off."""
        off = [each for each in finding.rung.switches if each.name in finding.cure]
        return Lines(code=tuple(line for each in off for line in each.lines))

    def close_up(
        self,
        config: CommandConfig,
        survey: Survey,
        found: Sequence[RungFinding],
        out: Path,
        scratch: Path,
    ) -> Iterator[str]:
        """Yield nothing."""
        return iter(())


def _survey_of_commits(config: CommandConfig) -> Survey:
    commits = commits_of(config.commits)
    notes = []
    if commits.has_submodules:
        notes.append(
            "submodules are not checked out in trials; let COMMAND run `git submodule update --init`"
        )
    fingerprint = {COMMITS: f"{commits.base}..{list(commits.hashes.values())[-1]}"}
    wiring = Wiring({}, config.command)
    return Survey((commits.rung,), tuple(notes), fingerprint, facts=(wiring, commits))


TARGET = CommandTarget()
