"""The commands run_ut, multi_run_ut and their other names: check the APIs of a dump.

Comes in: the options of the command. Goes out: its exit code. Called through the parser.

Also here: msprobe's config.json, as far as a precheck reads it: two lists of APIs, and where error data
goes.

    {"task": "acc_check", "acc_check": {"white_list": [], "black_list": [], "error_data_path": "./"}}

The section is called `acc_check` since msprobe 26 and `run_ut` before; without a section the three words
stand at the top. `task` is ignored, as it is by msprobe.
"""

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray_precheck.commands.precheck.outcome import (
    JUNIT_FILE,
    Outputs,
    exit_code,
    outputs_of,
)
from ray_precheck.dump.folders import FoundDumps
from ray_precheck.errors import UsageError
from ray_precheck.foreign import from_json, open_file
from ray_precheck.options.commands import (
    EXIT_CODES,
    NOTHING_CHECKED,
    STOPPED,
    UNUSABLE,
    VERSION,
    Command,
    FilterOrFramework,
    Invocation,
    given_values,
    note,
    worst_code,
)
from ray_precheck.options.declared import Number, Option, Takes, by_section, option_of, options_of
from ray_precheck.options.shared import JSON_FILE, PLOT
from ray_precheck.replay.config import RunConfig, SelectionOptions

if TYPE_CHECKING:
    from ray_precheck.commands.precheck.closing import RankSummary
    from ray_precheck.commands.precheck.run import RanksReport

SECTIONS = ("acc_check", "run_ut")
WORDS = ("white_list", "black_list", "error_data_path")
_LARGEST_BYTES = 16 << 20
_LONGEST_SHOWN = 80


@dataclass(frozen=True, slots=True)
class CheckerConfig:
    """The settings of a config.json that a precheck uses, and warnings about entries without
    effect.

    `error_data_path` None: the file does not name it.
    """

    white_list: tuple[str, ...] = ()
    black_list: tuple[str, ...] = ()
    error_data_path: Path | None = None
    warnings: tuple[str, ...] = ()


def read_checker_config(path: Path) -> CheckerConfig:
    """Return the settings of a config.json.

    Raises:
        UsageError: the file cannot be read, is no JSON object, or a word has a wrong value.
    """
    content = _mapping(path, "the whole file", _read_json(path))
    section = next((name for name in SECTIONS if name in content), "")
    found = _mapping(path, f"section {section!r}", content[section]) if section else content
    warnings = []
    if section:
        warnings = [
            f"{path}: {word!r} in {section!r} is unknown" for word in found if word not in WORDS
        ]
    elif not any(word in content for word in WORDS):
        warnings = [f"{path} has no section {' or '.join(map(repr, SECTIONS))}: it changes nothing"]
    folder = found.get("error_data_path")
    if folder is not None and (not isinstance(folder, str) or not Path(folder).is_dir()):
        raise _wrong(path, "error_data_path", folder, "a folder that exists")
    return CheckerConfig(
        _names(path, "white_list", found.get("white_list")),
        _names(path, "black_list", found.get("black_list")),
        None if folder is None else Path(folder),
        tuple(warnings),
    )


def _read_json(path: Path) -> Any:
    try:
        with open_file(path) as file:
            data = file.read(_LARGEST_BYTES + 1)
        if len(data) > _LARGEST_BYTES:
            raise UsageError(f"-config: {path} is larger than {_LARGEST_BYTES >> 20} MiB")
        return from_json(data.decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"-config: cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(
            f"-config: {path} is no JSON: {error}; msprobe's config.json is expected"
        ) from None


def _mapping(path: Path, place: str, found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise _wrong(path, place, found, f"an object with {', '.join(WORDS)}")
    return found


def _names(path: Path, word: str, found: Any) -> tuple[str, ...]:
    if found is None:
        return ()
    if not isinstance(found, list) or not all(isinstance(name, str) and name for name in found):
        raise _wrong(path, word, found, 'a list of names of APIs such as "conv2d"')
    return tuple(found)


def _wrong(path: Path, place: str, found: Any, expected: str) -> UsageError:
    shown = json.dumps(found)
    shown = shown if len(shown) <= _LONGEST_SHOWN else f"{shown[: _LONGEST_SHOWN - 3]}..."
    return UsageError(f"-config: {path}, {place}: {shown} where {expected} is expected")


def _execute(options: argparse.Namespace, invocation: Invocation) -> int:
    """Check the APIs of a dump and return the exit code."""
    config = run_config(options)
    outputs = outputs_of(options)
    _say_what_is_not_needed(options)
    # Imported here, so that --help and wrong options answer at once.
    from ray_precheck.formats.conversion import find_dumps_to_run

    found = find_dumps_to_run(config.dump)
    if options.list:
        from ray_precheck.commands.precheck.listing import print_calls

        return print_calls(config, found)
    from ray_precheck.replay.loading import loaded_early

    with loaded_early(config, config.framework, found.dumps[0].path):
        check = _check_ranks if found.is_many else _check
        return check(outputs, config, found, invocation)


def _check(outputs: Outputs, config: RunConfig, found: FoundDumps, invocation: Invocation) -> int:
    """Check the calls of one dump and return the exit code."""
    from ray_precheck.commands.precheck.closing import RankSummary, format_summary, state_of_end
    from ray_precheck.commands.precheck.junit import junit_lines
    from ray_precheck.commands.precheck.report import ended_view
    from ray_precheck.commands.precheck.run import run
    from ray_precheck.running.view_data import lines_beside

    report = run(config, on_files=lambda files: invocation.tell(files.result))
    with lines_beside(outputs.json):
        print(format_summary(report.summary))
        if not report.completed:
            invocation.stopped(report.stop_reason)
    state = state_of_end(report.summary, completed=report.completed, reason=report.stop_reason)
    code = exit_code(report.summary, state)
    rank = RankSummary("", report.summary, state=state, exit_code=code)
    outputs.write(junit_lines(report.summary, state), lambda: ended_view([rank], state, code))
    return code


def _check_ranks(
    outputs: Outputs, config: RunConfig, found: FoundDumps, invocation: Invocation
) -> int:
    """Check the dumps of several ranks or steps and return the exit code: the worst of all."""
    from ray_precheck.commands.precheck.closing import (
        combined,
        format_ranks,
        state_of_all,
    )
    from ray_precheck.commands.precheck.junit import ranks_junit_lines
    from ray_precheck.commands.precheck.report import ended_view
    from ray_precheck.commands.precheck.run import run_ranks
    from ray_precheck.running.view_data import lines_beside

    report = run_ranks(config, found, on_folder=invocation.tell)
    ranks = _summaries(report, found)
    with lines_beside(outputs.json):
        print(format_ranks(ranks[: len(report.ranks)], report.total, report.folder))
        if not report.completed:
            invocation.stopped(report.stop_reason)
    whole = combined(ranks, report.folder)
    state = state_of_all(ranks, whole, completed=report.completed, reason=report.stop_reason)
    code = exit_code(whole, state)
    if any(rank.is_unreadable for rank in report.ranks):
        code = worst_code(code, UNUSABLE)
    outputs.write(ranks_junit_lines(ranks), lambda: ended_view(ranks, state, code))
    return code


def _summaries(report: "RanksReport", found: FoundDumps) -> "list[RankSummary]":
    """Return the summary of each dump, including dumps that were not begun."""
    from ray_precheck.commands.precheck.closing import RankSummary, RunPhase, RunState, state_of_end

    ranks = []
    for rank in report.ranks:
        label, own = rank.found.label, rank.report
        if own is None:
            is_error = rank.is_unreadable
            code = UNUSABLE if is_error else NOTHING_CHECKED
            ranks.append(RankSummary(label, None, rank.problem, exit_code=code, is_error=is_error))
        else:
            state = state_of_end(own.summary, completed=own.completed, reason=own.stop_reason)
            code = exit_code(own.summary, state)
            ranks.append(RankSummary(label, own.summary, "", state, code))
    stopped = RunState(RunPhase.STOPPED, reason=report.stop_reason)
    problem = "not begun: the run stopped before"
    ranks += [
        RankSummary(each.label, None, problem, stopped, STOPPED, is_error=True)
        for each in found.dumps[len(report.ranks) :]
    ]
    return ranks


def _say_what_is_not_needed(options: argparse.Namespace) -> None:
    if options.num_splits is not None:
        NUM_SPLITS.require(options.num_splits)
        note(
            f"-n {options.num_splits} changes nothing: calls are not split beforehand, each device of"
            " -d takes the next one when it is free"
        )
    if options.jit_compile:
        note("-j changes nothing: operators run as the framework compiles them by itself")


def run_config(options: argparse.Namespace) -> RunConfig:
    """Return the configuration that parsed options ask for.

    Raises:
        UsageError: both -d and --devices are given, or the file of -config is wrong.
    """
    values = given_values(options, RunConfig)
    if options.config_path is not None:
        listed = read_checker_config(Path(options.config_path))
        for warning in listed.warnings:
            note(f"warning: {warning}")
        values |= {
            "white_list": listed.white_list,
            "black_list": listed.black_list,
            "error_data_path": listed.error_data_path,
        }
    return RunConfig(
        **values,
        # As msprobe's guide has it: multi_run_ut without -o saves to ./ut_error_data{timestamp}.
        error_data_as_msprobe=values.get("save_error_data", False)
        and options.command.startswith("multi_")
        and getattr(options, "out_path", "./") == "./",
    )


_NAMES = {
    "run_ut": "check the APIs of a dump",
    "multi_run_ut": "the same; msprobe's name for several devices",
    "acc_check": "another name of run_ut (msprobe 26)",
    "multi_acc_check": "another name of multi_run_ut (msprobe 26)",
}
_SELECTION = SelectionOptions.section
FILTER_OR_FRAMEWORK = Option(
    ("-f",),
    "alone: --filter_api; with a name: --framework",
    takes=Takes.PERHAPS,
    metavar="NAME",
    action=FilterOrFramework,
    section=RunConfig.section,
)
CONFIG_FILE = Option(
    ("-config", "--config_path"),
    "msprobe's config.json: white_list, black_list, error_data_path",
    more="The lists are names of APIs without prefix and number (`conv2d`); what they leave out gets no"
    " row. They stand in the section `acc_check` or `run_ut`, or at the top",
    takes=Takes.ONCE,
    metavar="JSON",
    section=_SELECTION,
)
LIST = Option(
    ("--list",),
    "list what would be checked, what not and why, and the estimated cost; start nothing",
    more="No Ray is started, no device is opened and no file is made",
    takes=Takes.NOTHING,
    default=False,
    section=_SELECTION,
)
_NOT_NEEDED = "options of msprobe that are accepted, and not needed"
NUM_SPLITS = Option(
    ("-n", "--num_splits"),
    "each device takes the next call when it is free",
    type=int,
    metavar="N",
    rule=Number("the count of splits", least=1, most=64),  # As msprobe has it.
    section=_NOT_NEEDED,
)
JIT_COMPILE = Option(
    ("-j", "--jit_compile"),
    "operators are run as the framework runs them by itself",
    takes=Takes.NOTHING,
    default=False,
    section=_NOT_NEEDED,
)


def _options() -> tuple[Option, ...]:
    """Return the options of the command in the order of --help: those of one section together."""
    framework = option_of(RunConfig, "framework")
    after = replace(
        framework, names=("--framework",), help=f"{framework.help}; also before the command"
    )
    own = [after if each == framework else each for each in options_of(RunConfig)]
    others = (
        FILTER_OR_FRAMEWORK,
        CONFIG_FILE,
        LIST,
        JUNIT_FILE,
        JSON_FILE,
        PLOT,
        NUM_SPLITS,
        JIT_COMPILE,
    )
    return by_section([*own, *others, VERSION])


COMMANDS = (Command(names=_NAMES, options=_options(), execute=_execute, epilog=EXIT_CODES),)
