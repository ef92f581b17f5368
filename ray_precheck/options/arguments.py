"""Between declared options and argparse: adds options to a parser, and reads the fields of a
configuration from the words that it parsed.

Comes in: options (`ray_precheck.options`). Goes out: a parser that has them; values of the fields of a
configuration. Called by `parser` and by the modules of the commands.
"""

import argparse
from collections.abc import Iterable
from typing import Any

from ray_precheck.errors import UsageError
from ray_precheck.options.actions import Once, Version
from ray_precheck.options.declared import Option, Takes, options_of
from ray_precheck.options.job import DebugOptions

_KEYWORDS: dict[Takes, dict[str, Any]] = {
    Takes.VALUE: {},
    Takes.ONCE: {"action": Once},
    Takes.SEVERAL: {"nargs": "+"},
    Takes.EACH: {"action": "append"},
    Takes.PERHAPS: {"nargs": "?"},
    Takes.NOTHING: {"action": "store_true"},
    Takes.REST: {"nargs": argparse.REMAINDER},
}

OUT_FOLDER = Option(
    ("-o", "--out_path"),
    "folder of the results (default {default})",
    metavar="FOLDER",
    default="./",
)
# Of commands that start no Ray, whose output --debug would show.
DEBUG = Option(
    ("--debug",),
    "show tracebacks",
    takes=Takes.NOTHING,
    default=False,
    section=DebugOptions.section,
)
VERSION = Option(
    ("-V", "--version"),
    "show the versions of ray_precheck, Python, ray and the frameworks, and exit",
    takes=Takes.NOTHING,
    action=Version,
    section=DebugOptions.section,
)


def add_options(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Add options to a parser, those of one section as a group of its help."""
    groups: dict[str, Any] = {"": parser}
    for option in options:
        if option.section not in groups:
            groups[option.section] = parser.add_argument_group(option.section)
        _add(groups[option.section], option)


def _add(group: Any, option: Option) -> None:
    keywords: dict[str, Any] = {"help": option.text.replace("%", "%%"), **_KEYWORDS[option.takes]}
    if option.takes is not Takes.NOTHING:
        keywords |= {"type": option.type, "metavar": option.metavar}
    if option.action is not None:
        keywords["action"] = option.action
        if option.takes is Takes.NOTHING:
            keywords["nargs"] = 0
    if not option.is_positional:
        # A field's default stands in its class: of an option that is not given nothing is stored.
        default = argparse.SUPPRESS if option.field or option.action else option.default
        keywords |= {"dest": option.dest, "required": option.required, "default": default}
    group.add_argument(*option.names, **keywords)


def given_values(given: argparse.Namespace, config: type) -> dict[str, Any]:
    """Return the fields of a configuration that options were given for, with their values.

    Raises:
        UsageError: two options were given for one field.
    """
    values: dict[str, Any] = {}
    for option in options_of(config):
        if not hasattr(given, option.dest):
            continue
        if option.field in values:
            names = [each.names[0] for each in options_of(config) if each.field == option.field]
            raise UsageError(f"{' and '.join(names)} exclude each other: {option.excludes}")
        value = getattr(given, option.dest)
        if option.takes in (Takes.SEVERAL, Takes.EACH):
            value = tuple(value)
        values[option.field] = value if option.becomes is None else option.becomes(value)
    return values
