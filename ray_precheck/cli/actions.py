"""Options that argparse has no word for.

Comes in: what stands on the command line. Goes out: values in argparse's namespace. Named by `groups`.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from ray_precheck.config import FRAMEWORKS
from ray_precheck.errors import UsageError


class Once(argparse.Action):
    """Stores a value, and refuses a second one: which of the two is meant nobody can tell."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Store the value.

        Raises:
            UsageError: there is one already.
        """
        before = getattr(namespace, self.dest, self.default)
        if before is not self.default:
            raise UsageError(
                f"{option_string} is given twice, as {before} and as {values}; name one"
            )
        setattr(namespace, self.dest, values)


class FilterOrFramework(argparse.Action):
    """`-f` after the command: alone msprobe's --filter_api, with a name the framework."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Store which of the two it is.

        Raises:
            UsageError: what follows is no framework.
        """
        if values is None:
            namespace.filter_api = True
        elif values in FRAMEWORKS:
            namespace.framework = values
        else:
            raise UsageError(
                f"{option_string} {values!r}: after the command, {option_string} alone means"
                f" --filter_api and {option_string} {'|'.join(FRAMEWORKS)} names the framework;"
                f" {values!r} is neither"
            )
