"""Try releases of MSAdapter and MindTorch as a user would: install, capture, precheck.

    python -m scripts.msadapter [NAME ...] --work FOLDER [--keep] [--lay-out] [--list]

For each release an environment is made with a MindSpore and a Python that import it, the release is laid
out as MSAdapter's `build/lib` is (a folder that holds a package `torch`), a small step of training is
captured under it, the capture is checked under `msprobe` and `auto`, and checked again with a wrong relu in
a copy of the release, which must be blamed. Then the environment is removed (`--keep` leaves it): one takes
up to 4 GB. A table is printed. `--lay-out` stops after FOLDER/NAME/lib is laid out, for a Python of one's
own. The exit code is 1 where a release cannot be tried or the fault is missed.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.msadapter.adapters import ADAPTERS, Adapter
from scripts.msadapter.rows import adapter_table
from scripts.msadapter.trial import StepFailed, right_blame, try_adapter, unpack


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the releases that were asked for; returns the exit code."""
    options = _options(arguments)
    if options.list:
        for adapter in ADAPTERS:
            print(f"{adapter.name}: Python {adapter.python}, {', '.join(adapter.host)}")
        return 0
    chosen = [adapter for adapter in ADAPTERS if adapter.name in options.names]
    if options.lay_out:
        return _lay_out_all(chosen, options.work.resolve())
    found = []
    for adapter in chosen:
        print(f"{adapter.name} ...", file=sys.stderr, flush=True)
        found.append(try_adapter(adapter, options.work.resolve(), keep=options.keep))
    print(adapter_table(found))
    return int(any(each.failure or not right_blame(each.blamed) for each in found))


def _lay_out_all(chosen: Sequence[Adapter], work: Path) -> int:
    for adapter in chosen:
        library = work / adapter.name / "lib"
        try:
            unpack(adapter, Path(sys.executable), library)
        except (StepFailed, FileExistsError) as error:
            print(f"{adapter.name} cannot be laid out: {error}", file=sys.stderr)
            return 1
        print(f"export PYTHONPATH={library}:$PYTHONPATH")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [adapter.name for adapter in ADAPTERS]
    parser = argparse.ArgumentParser(
        prog="python -m scripts.msadapter", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(names)}")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="where it is done")
    parser.add_argument("--keep", action="store_true", help="leave the environments there")
    parser.add_argument(
        "--lay-out", action="store_true", help="only unpack and lay out; print its PYTHONPATH"
    )
    parser.add_argument("--list", action="store_true", help="say what would be tried")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in names]
    if unknown:
        parser.error(f"no release is called {', '.join(unknown)}; choose from {', '.join(names)}")
    if not options.list and options.work is None:
        parser.error("--work FOLDER is needed: environments of up to 4 GB are made there")
    options.names = options.names or names
    return options
