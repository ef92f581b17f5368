"""The command around a `DumpsFeature`: `ray-precheck NAME DUMP`, with its lines, `--json` and `--plot`.

Comes in: the name, the configuration and the parts of a command. Goes out: its `Command`.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ray_precheck.errors import UsageError
from ray_precheck.options.commands import Command, Invocation, given_values
from ray_precheck.options.declared import Option, Takes, by_section, options_of
from ray_precheck.options.shared import JSON_FILE, PLOT, WITHOUT_DEVICE

if TYPE_CHECKING:
    from ray_precheck.running.views import FoundRun
    from ray_precheck.schema.view import View
    from ray_precheck.store.tables import RunFiles


class DumpsReport(Protocol):
    """The report of a run over dumps; `without` are folders that have none."""

    files: "RunFiles"
    completed: bool
    stop_reason: str
    without: tuple[Path, ...]


class DumpsParts(NamedTuple):
    """What a command does with its configuration: the run, and of its report the lines, the view and the
    exit code."""

    run: Callable[..., Any]
    lines: Callable[[Any], Iterable[str]]
    view: "Callable[[Sequence[FoundRun]], View]"
    exit_code: Callable[[Any], int]


def dumps_command(
    name: str,
    summary: str,
    config: type[Any],
    dump_is: str,
    epilog: str,
    load: Callable[[], DumpsParts],
) -> Command:
    """Return the command; `dump_is` says what DUMP may be. `load` imports its parts, so that --help and wrong
    options answer at once."""

    def execute(options: argparse.Namespace, invocation: Invocation) -> int:
        values = given_values(options, config)
        if options.dump is not None:
            if "dump" in values:
                raise UsageError(
                    f"{options.dump} and -i {values['dump']} both name a dump; name one"
                )
            values["dump"] = Path(options.dump)
        if "dump" not in values:
            raise UsageError(f"the dump is missing: ray-precheck {name} DUMP")
        return _run(config(**values), load(), options, invocation)

    own = [replace(each, required=False) for each in options_of(config)]
    own = [each for each in own if each.field not in WITHOUT_DEVICE]
    dump = Option(("dump",), dump_is, takes=Takes.PERHAPS, metavar="DUMP")
    return Command(
        names={name: summary},
        options=by_section([dump, *own, JSON_FILE, PLOT]),
        execute=execute,
        epilog=epilog,
    )


def _run(
    config: Any, parts: DumpsParts, options: argparse.Namespace, invocation: Invocation
) -> int:
    from ray_precheck.foreign import printable
    from ray_precheck.running.plot import draw_view, require_rich
    from ray_precheck.running.view_data import json_target, lines_beside, write_views
    from ray_precheck.running.views import found_run

    target = json_target(options.json)
    if options.plot:
        require_rich()
    report: DumpsReport = parts.run(config, on_files=invocation.tell)
    for missing in report.without:
        print(f"warning: {missing} has no dump.json and is left out", file=sys.stderr)
    with lines_beside(target):
        print("\n".join(map(printable, parts.lines(report))))
        if not report.completed:
            invocation.stopped(report.stop_reason)
        seen = parts.view([found_run(report.files.details)]) if target or options.plot else None
        if seen is not None and options.plot:
            draw_view(seen)
    if seen is not None and target is not None:
        write_views(target, [seen])
    return parts.exit_code(report)
