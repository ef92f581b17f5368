"""Actions of options that argparse lacks.

Comes in: the words of the command line. Goes out: values in argparse's namespace. Named by options
that are declared in `arguments`, `parser` and `commands.run_ut`.
"""

import argparse
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from ray_precheck import __version__
from ray_precheck.errors import UsageError
from ray_precheck.frameworks.known import (
    framework_names,
    is_framework,
    versioned_distributions,
)


class Once(argparse.Action):
    """Stores a value, and refuses a second one, because it is unclear which of the two is meant."""

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


class FrameworkName(argparse.Action):
    """`-f` before the command: always the framework."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Store the name, which is looked at with the other options.

        Raises:
            UsageError: it is the name of a command.
        """
        if str(values).endswith(("run_ut", "acc_check")):
            raise UsageError(
                f"{option_string} {values}: before the command {option_string} names the framework"
                f" ({'|'.join(framework_names())}); -f for --filter_api stands after the command"
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

        Raises: UsageError: the word that follows is no framework.
        """
        if values is None:
            namespace.filter_api = True
        elif isinstance(values, str) and is_framework(values):
            namespace.framework = values
        else:
            raise UsageError(
                f"{option_string} {values!r}: after the command, {option_string} alone means"
                f" --filter_api and {option_string} {'|'.join(framework_names())} names the framework;"
                f" {values!r} is neither"
            )


class Version(argparse.Action):
    """Prints the installed versions and ends, without loading a framework."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Print a line for each package and exit with 0."""
        for name, version in installed_versions().items():
            print(f"{name:13} {version}")
        parser.exit()


def installed_versions() -> dict[str, str]:
    """Return the versions of this package, of Python and of the frameworks, by name."""
    found = {"ray_precheck": __version__, "Python": platform.python_version()}
    for name in ("ray", *versioned_distributions()):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
