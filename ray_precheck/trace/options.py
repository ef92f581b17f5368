"""The options that name captures and how their calls are paired, as several commands have them.

Goes out: defaults of fields, as `option` returns them, each with the words that are its command's own. Called
by the groups of options of `compare`, `locate` and `diagnose`.
"""

from pathlib import Path
from typing import Any

from ray_precheck.options.declared import REQUIRED, OneOf, Takes, option

EXACT, ALIGNED = "exact", "align"


def target_capture(what: str) -> Any:
    """Return the default of the field of `-tp`."""
    help_line = f"{what}: a dump.json, or a folder: of a rank, of a step, or of all steps"
    return _capture(REQUIRED, "-tp", "--target_path", help=help_line)


def golden_capture(default: Any, what: str, more: str) -> Any:
    """Return the default of the field of `-gp`: `REQUIRED`, or None."""
    return _capture(default, "-gp", "--golden_path", help=what, more=more)


def noise_capture(where: str = "", more: str = "") -> Any:
    """Return the default of the field of `--noise`."""
    help_line = f"another capture of the golden run: what differs between these two is noise{where}"
    return _capture(None, "--noise", help=help_line, more=more)


def _capture(default: Any, *names: str, help: str, more: str = "") -> Any:
    return option(
        default, *names, help=help, more=more, takes=Takes.ONCE, metavar="DUMP", becomes=Path
    )


def pairing(where: str = "", more: str = "", rows: str = "") -> Any:
    """Return the default of the field of `--match`; `rows` is its key in the settings of a run."""
    help_line = f"{{choices}} (default: {{default}}): how calls are paired{where}"
    rule = OneOf((ALIGNED, EXACT))
    return option(ALIGNED, "--match", help=help_line, more=more, rule=rule, rows=rows)
