"""All that our sources use of the libraries, and what Ray uses of acl.

Comes in: the folder of a package. Goes out: `Everything`. Called by the command and by the tests.
"""

import importlib.metadata
import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path

from scripts.measuring import ROOT
from scripts.npu_calls.collector import collect_uses
from scripts.npu_calls.definitions import Wheel
from scripts.npu_calls.evaluate import Use
from scripts.npu_calls.facts import Fact, collect_facts, collect_operators
from scripts.npu_calls.names import Scopes
from scripts.npu_calls.sources import Sources
from scripts.npu_calls.wheels import Unpacked

PACKAGE = ROOT / "ray_precheck"
# Where Ray counts the NPUs of a machine.
_RAY = "_private/accelerators"


@dataclass(frozen=True, slots=True)
class Everything:
    """The uses, operators among them, the facts, and the places and texts that cannot be followed."""

    uses: frozenset[Use]
    facts: frozenset[Fact]
    unclear: tuple[tuple[str, str], ...]


def collect_everything(folder: Path = PACKAGE) -> Everything:
    """Return what the package in a folder uses."""
    scopes = Scopes(Sources(folder))
    found = collect_uses(scopes)
    operators, unread = collect_operators(scopes)
    facts, unsorted = collect_facts(scopes)
    unclear = found.unclear | unread | unsorted
    return Everything(frozenset(found.uses | operators), frozenset(facts), tuple(sorted(unclear)))


def uses_of_ray() -> frozenset[Use]:
    """Return what the installed Ray uses of acl to find NPUs; Ray is read, not imported."""
    found = collect_uses(Scopes(Sources(_ray_folder())))
    return frozenset(
        replace(use, where=f"ray/{_RAY}/{use.where}") for use in found.uses if use.library == "acl"
    )


def installed_ray() -> Unpacked:
    """Return the files of the installed Ray that find accelerators."""
    return Unpacked("ray", importlib.metadata.version("ray"), Wheel(_ray_folder()), (), ())


def _ray_folder() -> Path:
    spec = importlib.util.find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / _RAY
