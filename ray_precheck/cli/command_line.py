"""From the arguments of a process to its exit code.

Comes in: arguments. Goes out: an exit code (`exit_codes`). Errors are one sentence on standard
error. Called as `ray-precheck`, as `python -m ray_precheck`, and by tests.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ray_precheck.cli.exit_codes import NOTHING_CHECKED, PASSED, STOPPED
from ray_precheck.cli.going_on import resume_command
from ray_precheck.cli.invocation import Execute, Invocation
from ray_precheck.cli.parser import COMMANDS, build_parser
from ray_precheck.cli.streams import outlive_readers
from ray_precheck.dump.cut_short import cuts_told
from ray_precheck.errors import PrecheckError
from ray_precheck.guardian import guard


def entry() -> int:
    """Run the command of this process, watched over by a guardian; return the exit code."""
    given = sys.argv[1:]
    outlive_readers()
    if _runs_a_script(given):  # which keeps its own signals, children and end
        return main(given)

    def epitaph(result: str, how: str) -> None:
        print(f"\nray-precheck: error: the process of the run was ended ({how})", file=sys.stderr)
        if result and Path(result).exists():
            print("All acknowledged rows are on disk. To go on:", file=sys.stderr)
            print(f"  {resume_command(given, Path(result))}", file=sys.stderr)

    return guard(lambda announce: main(given, announce), epitaph)


def _runs_a_script(given: Sequence[str]) -> bool:
    names = {name for command in COMMANDS for name in command.names}
    return next((word for word in given if word in names), "") == "capture"


def main(
    arguments: Sequence[str] | None = None, announce: Callable[[str], None] = lambda text: None
) -> int:
    """Run a command and return the exit code; `announce` is told the result CSV once it is there."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    own = given[: given.index("--")] if "--" in given else given
    debug = "--debug" in own
    try:
        options = build_parser().parse_args(given)
        execute: Execute = options.execute
        with cuts_told(_say_first) as cuts:
            code = execute(options, Invocation(tuple(given), announce))
        if cuts and code == PASSED:
            code = NOTHING_CHECKED  # what was to be looked at was not there
        sys.stdout.flush()  # A full disk is an error that is still said in a sentence here.
        return code
    except PrecheckError as error:
        if debug:
            raise
        print(f"ray-precheck: error: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("ray-precheck: interrupted", file=sys.stderr)
        return STOPPED
    except Exception as error:
        # Broad, because all errors for people are caught above: this one is a fault of this package
        # or of a library, and the run can still be resumed from its files.
        if debug:
            raise
        text = " ".join(f"{type(error).__name__}: {error}".split())
        print(
            f"ray-precheck: internal error: {text} (--debug shows the traceback)", file=sys.stderr
        )
        return STOPPED


def _say_first(text: str) -> None:
    print(f"warning: {text}.", file=sys.stderr, flush=True)
