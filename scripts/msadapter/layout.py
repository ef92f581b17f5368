"""A release laid out as MSAdapter's `build/lib` is: a folder that holds a package `torch`.

Comes in: an `Adapter`, a folder into which pip has unpacked its release. Goes out: `torch/__init__.py`
there, so that PYTHONPATH=FOLDER puts the release in front of the native torch. Called by `trial`.
"""

import shutil
from pathlib import Path

from scripts.msadapter.adapters import Adapter

PLANTED = "Functional.relu"

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

_FAULT = '''

def relu(input, inplace=False, _right=relu):
    """A planted fault: one part in a hundred too large."""
    return _right(input) * 1.01
'''


def lay_out(adapter: Adapter, folder: Path) -> None:
    """Write the package `torch` into a folder that holds the packages of a release."""
    package = folder / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(front_of(adapter), encoding="utf-8")


def front_of(adapter: Adapter) -> str:
    """Return the text of `torch/__init__.py`: the release's own way to be torch, or an alias."""
    known = {"requirement": adapter.requirement, "module": adapter.module}
    known |= {"own_way": adapter.own_way, "lost": repr(adapter.lost)}
    parts = [_ENTRANCE, _LOST if adapter.lost else "", _OWN_WAY if adapter.own_way else _ALIAS]
    return "".join(part.format(**known) for part in parts)


def with_fault(adapter: Adapter, folder: Path, copy: Path) -> None:
    """Copy a folder that is laid out, and make relu (`PLANTED`) wrong in the copy.

    Raises:
        FileNotFoundError: the release's functions are not where `adapter` says.
    """
    shutil.copytree(folder, copy)
    path = copy / adapter.functional
    path.write_text(path.read_text(encoding="utf-8") + _FAULT, encoding="utf-8")
