"""COVERAGE.md as it is written: the versions it holds for, and the names that it says cannot be checked.

Comes in: the text. Goes out: versions, names, and what a table of the installed versions says against
it. Called by `scripts/coverage` and by the coverage tests, where other versions are installed.
"""

import importlib
import importlib.util
import re

from scripts.coverage.status import Namespace, Status

PACKAGES = {"torch": "torch", "mindspore": "MindSpore"}
# Of all names of a namespace so many may be uncovered here alone: those of other versions.
_OTHERS_SHARE = 0.02
_VERSIONS = re.compile(r"torch (\d[\w.]*\w) and MindSpore (\d[\w.]*\w)")


def installed_versions() -> dict[str, str]:
    """Return the versions of torch and MindSpore, as far as they are installed."""
    found = {}
    for package in PACKAGES:
        if importlib.util.find_spec(package) is not None:
            version = importlib.import_module(package).__version__
            found[package] = str(version).split("+")[0]
    return found


def documented_versions(text: str) -> dict[str, str]:
    """Return the versions of torch and MindSpore that the head of the docs names, {} where none."""
    match = _VERSIONS.search(" ".join(text.split()))
    return {} if match is None else dict(zip(PACKAGES, match.groups(), strict=True))


def told(versions: dict[str, str]) -> str:
    """Return versions for people: torch 2.13.0 and MindSpore 2.10.0."""
    return " and ".join(f"{PACKAGES[package]} {version}" for package, version in versions.items())


def uncovered_names(text: str) -> dict[str, set[str]]:
    """Return the names that the docs say cannot be checked, by the titles of their namespaces."""
    found: dict[str, set[str]] = {}
    for section in re.split(r"(?m)^## ", text)[1:]:
        title, _, rest = section.partition("\n")
        blocks = re.findall(r"(?s)```\n(.*?)```", rest)
        found[title] = {name for block in blocks for name in block.split()}
    return found


def contradictions(text: str, table: dict[Namespace, list[Status]]) -> list[str]:
    """Return what the docs say otherwise than a table that was made from other versions.

    A name that can be checked here must not be one that cannot be checked there. The other way round
    some names are of the installed versions alone; more than a few are said.
    """
    documented = uncovered_names(text)
    found = []
    for namespace, statuses in table.items():
        there = documented.get(namespace.title, set())
        found += [
            f"{namespace.title}: {status.name} has a {status.kind.value} here, and none there"
            for status in statuses
            if status.is_covered and status.name in there
        ]
        here = [s.name for s in statuses if not s.is_covered and s.name not in there]
        if len(here) > max(2, _OTHERS_SHARE * len(statuses)):
            found.append(
                f"{namespace.title}: {', '.join(here)} cannot be checked here, and can there"
            )
    return found
