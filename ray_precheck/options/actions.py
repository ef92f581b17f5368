"""Actions of options that argparse lacks.

Comes in: the words of the command line. Goes out: values in argparse's namespace. Named by options
that are declared in `arguments`, `parser` and `commands.run_ut`.
"""

import argparse
import platform
from abc import abstractmethod
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from ray_precheck import __version__
from ray_precheck.descriptors.known import (
    framework_names,
    is_framework,
    versioned_distributions,
)
from ray_precheck.errors import UsageError

_Values = str | Sequence[Any] | None


class Taker(argparse.Action):
    """An action whose `take` alone says what becomes of the values."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Have `take` deal with the values."""
        self.take(namespace, values, option_string)

    @abstractmethod
    def take(self, namespace: argparse.Namespace, values: _Values, option: str | None) -> None:
        """Deal with the values that follow an option, None for an option without any."""


class Once(Taker):
    """Stores a value, and refuses a second one, because it is unclear which of the two is meant."""

    def take(self, namespace: argparse.Namespace, values: _Values, option: str | None) -> None:
        """Store the value.

        Raises:
            UsageError: there is one already.
        """
        before = getattr(namespace, self.dest, self.default)
        if before is not self.default:
            raise UsageError(f"{option} is given twice, as {before} and as {values}; name one")
        setattr(namespace, self.dest, values)


class FrameworkName(Taker):
    """`-f` before the command: always the framework."""

    def take(self, namespace: argparse.Namespace, values: _Values, option: str | None) -> None:
        """Store the name, which is looked at with the other options.

        Raises:
            UsageError: it is the name of a command.
        """
        if str(values).endswith(("run_ut", "acc_check")):
            raise UsageError(
                f"{option} {values}: before the command {option} names the framework"
                f" ({'|'.join(framework_names())}); -f for --filter_api stands after the command"
            )
        setattr(namespace, self.dest, values)


class FilterOrFramework(Taker):
    """`-f` after the command: alone msprobe's --filter_api, with a name the framework."""

    def take(self, namespace: argparse.Namespace, values: _Values, option: str | None) -> None:
        """Store which of the two it is.

        Raises: UsageError: the word that follows is no framework.
        """
        if values is None:
            namespace.filter_api = True
        elif isinstance(values, str) and is_framework(values):
            namespace.framework = values
        else:
            raise UsageError(
                f"{option} {values!r}: after the command, {option} alone means"
                f" --filter_api and {option} {'|'.join(framework_names())} names the framework;"
                f" {values!r} is neither"
            )


class Version(Taker):
    """Prints the installed versions and ends, without loading a framework."""

    def take(self, namespace: argparse.Namespace, values: _Values, option: str | None) -> None:
        """Print a line for each package and exit with 0."""
        for name, version in installed_versions().items():
            print(f"{name:13} {version}")
        raise SystemExit(0)


def installed_versions() -> dict[str, str]:
    """Return the versions of this package, of Python and of the frameworks, by name."""
    found = {"ray_precheck": __version__, "Python": platform.python_version()}
    for name in ("ray", *versioned_distributions()):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
