"""The command bisect: which pass, switch or operator makes the result wrong.

Comes in: the name of a target and its options. Goes out: the exit code. Called through the parser.
"""

import argparse
from dataclasses import replace
from typing import Any

from ray_precheck.errors import UsageError
from ray_precheck.options.commands import (
    PASSED,
    Command,
    Invocation,
    SentenceParser,
    add_options,
    given_values,
)
from ray_precheck.options.declared import Option, Takes, by_section, options_of
from ray_precheck.options.shared import JSON_FILE, PLOT, WITHOUT_DEVICE

_WITHOUT = WITHOUT_DEVICE - {"max_memory_gib"}
_EXIT_CODES = (
    "exit codes: 0 nothing makes a difference, 1 a culprit was found, or it is wrong with everything off, 2"
    " wrong usage or input, 3 stopped, resumable, 4 no trial gave an answer"
)


def _execute(options: argparse.Namespace, invocation: Invocation) -> int:
    """Bisect a target and return the exit code."""
    # Imported here, so that --help of the whole command line stays light.
    from ray_precheck.commands.bisect.targets.found import find_target, target_texts

    words = list(options.words or ())
    if not options.target or options.target.startswith("-"):
        texts = "; ".join(f"{name}: {text}" for name, text in target_texts().items())
        raise UsageError(
            f"name what is bisected: ray-precheck bisect TARGET ...; there are {texts}"
        )
    target = find_target(options.target)
    parser = SentenceParser(
        prog=f"ray-precheck bisect {target.name}", description=target.text, epilog=_EXIT_CODES
    )
    add_options(parser, options_of_target(target))
    given = parser.parse_args(words)
    config = target.config(**given_values(given, target.config))
    config.validate()
    if config.dry_run:
        return _listed(target, config)
    return _bisected(target, config, given, invocation)


def options_of_target(target: Any) -> tuple[Option, ...]:
    """Return the options of a target in the order of --help."""
    own = (each for each in options_of(target.config) if each.field not in _WITHOUT)
    plot = replace(PLOT, help="draw how the set shrank on the screen (needs rich)")
    return by_section([*own, JSON_FILE, plot])


def _listed(target: Any, config: Any) -> int:
    from ray_precheck.commands.bisect.closing import survey_lines
    from ray_precheck.commands.bisect.run import survey_target
    from ray_precheck.runtime.places.scratch import private_folder

    with private_folder() as scratch:
        survey = survey_target(target, config, scratch, print)
    print("\n".join(survey_lines(survey)))
    return PASSED


def _bisected(target: Any, config: Any, options: argparse.Namespace, invocation: Invocation) -> int:
    from ray_precheck.commands.bisect.closing import (
        bisect_exit_code,
        bisect_lines,
        unresolved_foot,
    )
    from ray_precheck.commands.bisect.report import view
    from ray_precheck.commands.bisect.run import bisect
    from ray_precheck.running.plot import draw_view, require_rich
    from ray_precheck.running.view_data import json_target, lines_beside, write_views
    from ray_precheck.running.views import found_run

    json = json_target(options.json)
    if options.plot:
        require_rich()
    report = bisect(target, config, on_files=invocation.tell)
    seen = view([found_run(report.files.result)]) if json or options.plot else None
    with lines_beside(json):
        print("\n".join([*bisect_lines(target, config, report), *report.said]))
        if seen is not None and options.plot:
            draw_view(seen)
        if not report.completed:
            invocation.stopped(report.stop_reason)
    if seen is not None and json is not None:
        write_views(json, [seen])
    unresolved = unresolved_foot(report)
    if unresolved:
        raise UsageError(unresolved)
    return bisect_exit_code(report)


COMMANDS = (
    Command(
        names={
            "bisect": "find the pass, switch or operator that makes the result wrong, by trials"
        },
        options=(
            Option(
                ("target",),
                "what is bisected: paddle, torch-compile, onnx, or run for any command",
                takes=Takes.PERHAPS,
                metavar="TARGET",
            ),
            Option(
                ("words",),
                "its options: ray-precheck bisect TARGET --help",
                takes=Takes.REST,
                metavar="...",
            ),
        ),
        execute=_execute,
        epilog=_EXIT_CODES,
        description="A result is right with everything off and wrong as it is deployed: the smallest set of"
        " switches that makes the difference is found by trials, several at once",
    ),
)
