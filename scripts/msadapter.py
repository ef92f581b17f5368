"""Lay a release of MSAdapter or MindTorch out as MSAdapter's `build/lib` is: a folder with a package `torch`.

    python -m scripts.msadapter mindtorch-0.4.0 --work FOLDER --lay-out

pip unpacks the release into FOLDER/NAME/lib, without what it asks for: that is whole other packages, and
other versions of NumPy and MindSpore. A package `torch` is written beside it, which does what the release
does itself to be torch, or has its modules found under the names of torch's. Printed is the PYTHONPATH that
puts it in front of the native torch.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Release(NamedTuple):
    """A release: what pip gets, and the module of it that stands for torch.

    `own_way` is the import by which the release itself puts it there ("" where it has none). `lost` are the
    left and right types of powers whose registrations the release looks up and MindSpore 2.5 has no more.
    """

    requirement: str
    module: str
    own_way: str = ""
    lost: tuple[tuple[str, str], ...] = ()


_LOST_IN_25 = (("Tuple", "Tensor"), ("Tensor", "Tuple"), ("List", "Tensor"), ("Tensor", "List"))
RELEASES = {
    "msadapter-0.1.0-ms20": Release("msadapter==0.1.0", "msadapter.pytorch"),
    "msadapter-0.1.0": Release("msadapter==0.1.0", "msadapter.pytorch", lost=_LOST_IN_25),
    "mindtorch-0.4.0": Release(
        "mindtorch==0.4.0",
        "mindtorch.torch",
        "from mindtorch.tools import mstorch_enable",
        _LOST_IN_25,
    ),
    "mindnlp-0.5.1": Release("mindnlp==0.5.1", "mindtorch", "import mindtorch"),
}

_ENTRANCE = '''"""The `torch` of {requirement}: its modules are those of {module}."""

import sys

# Until the real one is there, nobody may find this module, which has no Tensor.
del sys.modules["torch"]
'''

_LOST = '''
from mindspore import dtype as mstype
from mindspore.ops.composite.multitype_ops.pow_impl import pow_


def _is_there(names):
    """Return whether powers of these types are registered, as the release asks it."""
    types = [mstype.typing.str_to_type(name) for name in names]
    return any(
        len(signature) == len(types) and all(map(mstype._issubclass_, types, signature))
        for signature, _ in pow_.entries
    )


def _lost(left, right):
    """Raise, for a registration that the release looks up at its import and MindSpore has no more."""
    raise TypeError("MindSpore raises no %s to the power of a %s" % (type(left), type(right)))


for names in {lost}:
    if not _is_there(names):
        pow_.register(*names)(_lost)
'''

_OWN_WAY = """
{own_way}
import torch
"""

_ALIAS = '''
import importlib
import importlib.util
from importlib.machinery import ModuleSpec

_REAL = "{module}"


class _Alias:
    """Finds and loads the module torch.X as the module of the same name in the release."""

    def find_spec(self, fullname, path=None, target=None):
        if not fullname.startswith("torch."):
            return None
        found = importlib.util.find_spec(_REAL + fullname[len("torch") :])
        return ModuleSpec(fullname, self) if found else None

    def create_module(self, spec):
        module = importlib.import_module(_REAL + spec.name[len("torch") :])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module):
        module.__spec__ = module.__spec__.loader_state


sys.modules["torch"] = importlib.import_module(_REAL)
sys.meta_path.insert(0, _Alias())
'''


def lay_out(release: Release, folder: Path) -> None:
    """Write the package `torch` into a folder that holds the packages of a release."""
    package = folder / "torch"
    package.mkdir(parents=True)
    known = {**release._asdict(), "lost": repr(release.lost)}
    parts = [_ENTRANCE, _LOST if release.lost else "", _OWN_WAY if release.own_way else _ALIAS]
    (package / "__init__.py").write_text("".join(part.format(**known) for part in parts), "utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Lay the releases out that were asked for; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.msadapter", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "names", nargs="+", metavar="NAME", choices=RELEASES, help=f"some of {', '.join(RELEASES)}"
    )
    parser.add_argument(
        "--work", type=Path, metavar="FOLDER", required=True, help="where it is done"
    )
    parser.add_argument(
        "--lay-out", action="store_true", help="what it does, also if it is left out"
    )
    options = parser.parse_args(arguments)
    for name in options.names:
        library, release = options.work.resolve() / name / "lib", RELEASES[name]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps"]
        done = subprocess.run([*pip, "--target", library, release.requirement], check=False)
        if done.returncode or (library / "torch").exists():
            why = "its folder has a torch already" if not done.returncode else "pip cannot get it"
            print(f"{name} cannot be laid out in {library}: {why}", file=sys.stderr)
            return 1
        lay_out(release, library)
        print(f"export PYTHONPATH={library}:$PYTHONPATH")
    return 0


if __name__ == "__main__":
    sys.exit(main())
