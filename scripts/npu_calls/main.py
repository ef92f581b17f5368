"""Looks up in the releases of torch_npu and MindSpore what our sources use of them.

`python -m scripts.npu_calls` prints the page, `--write` writes it into the docs, `--wheels FOLDER` keeps the
unpacked wheels there. It exits with 1 if a release lacks a use or does not take its arguments, unless
`accepted.py` says why that is right, or if a use cannot be followed.
"""

import argparse
import datetime
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from scripts.npu_calls.evaluate import Use
from scripts.npu_calls.everything import (
    PACKAGE,
    Everything,
    collect_everything,
    installed_ray,
    uses_of_ray,
)
from scripts.npu_calls.explained import ACCEPTED, ACL_REFERENCE
from scripts.npu_calls.facts import Fact
from scripts.npu_calls.lookup import Presence, Sighting, has_fact, look_up
from scripts.npu_calls.wheels import RELEASES, NoWheel, Unpacked, unpacked
from scripts.npu_calls.words import Sightings, page

DOCS = PACKAGE / "frameworks" / "ASCEND.md"
_BAD = (Presence.MISSING, Presence.ARGUMENTS)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheels", type=Path, help="the folder of the unpacked wheels; it is kept")
    parser.add_argument("--write", action="store_true", help="write the page into the docs")
    options = parser.parse_args(argv)
    everything = collect_everything()
    try:
        if options.wheels is not None:
            sightings = look_everything_up(everything, options.wheels)
        else:
            with tempfile.TemporaryDirectory() as folder:
                sightings = look_everything_up(everything, Path(folder))
    except NoWheel as error:
        print(f"npu_calls: {error}", file=sys.stderr)
        return 2
    text = page(everything, uses_of_ray(), sightings, datetime.date.today())
    if options.write:
        DOCS.write_text(text, encoding="utf-8")
    else:
        print(text)
    wrong = list(complaints(everything, sightings))
    for line in wrong:
        print(f"npu_calls: {line}", file=sys.stderr)
    return 1 if wrong else 0


def look_everything_up(everything: Everything, folder: Path) -> dict[str, Sightings]:
    """Return what each release of each package has."""
    found: dict[str, Sightings] = {}
    for package in RELEASES:
        things: list[Use | Fact] = [use for use in everything.uses if use.library == package]
        things += everything.facts
        found[package] = {
            release.version: {thing: _sighting(thing, release) for thing in things}
            for release in unpacked(package, folder)
        }
    ray = installed_ray()
    found["ray"] = {ray.version: {fact: _sighting(fact, ray) for fact in everything.facts}}
    return found


def _sighting(thing: Use | Fact, release: Unpacked) -> Sighting:
    if isinstance(thing, Use):
        return look_up(thing, release)
    return Sighting(Presence.PRESENT if has_fact(thing, release) else Presence.MISSING)


def complaints(everything: Everything, sightings: dict[str, Sightings]) -> Iterator[str]:
    """Yield a sentence for each use that a release lacks or that cannot be followed."""
    for where, what in everything.unclear:
        yield f"{where}: {what}; explain it in scripts/npu_calls/explained.py"
    lacked = set()
    for use in uses_of_ray():
        if use.text not in ACL_REFERENCE:
            yield f"{use.where}: {use.text} is not in explained.ACL_REFERENCE"
    for package, releases in sightings.items():
        for use in sorted(use for use in everything.uses if use.library == package):
            for kind in _BAD:
                versions = [v for v, each in releases.items() if each[use].found is kind]
                if versions and use.text in ACCEPTED:
                    lacked.add(use.text)
                elif versions:
                    yield _complaint(use, package, kind, versions)
    for text in sorted(ACCEPTED.keys() - lacked):
        yield f"{text} is accepted in scripts/npu_calls/accepted.py, and no release lacks it"


def _complaint(use: Use, package: str, kind: Presence, versions: Iterable[str]) -> str:
    what = "is missing" if kind is Presence.MISSING else "does not take these arguments"
    return f"{use.where}: {use.text} {what} in {package} {', '.join(versions)}"
