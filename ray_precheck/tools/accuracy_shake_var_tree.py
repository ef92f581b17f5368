"""`accuracy_shake_var_tree`: the roots of the variables that differ, and how they depend on each other.

    python -m ray_precheck.tools.accuracy_shake_var_tree diff.txt

Comes in: what `compare_binary_iodump` printed, MegEngine's or ours. Goes out: the roots, which are the
variables that differ and got no variable that does, with their text. To import: `parse`, `get_dependence` and
`varNode`, under MegEngine's names. Numbers are written `id:3`, in older MegEngines `id::3`; either finds a
variable.

Unlike MegEngine 1.13's tool, variables that are not finite or have another shape are nodes like others; what
has no inputs (a weight, an input of the network) can be a root; and the order of the text does not matter.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from ray_precheck.errors import DumpError, PrecheckError
from ray_precheck.foreign import open_text, printable
from ray_precheck.options.commands import PASSED, UNUSABLE

_ID = re.compile(r"\{(id::?)([0-9]{1,18}),")
_ENDS = (" not equal: ", " not finite: ", " shape mismatch: ")
_TITLE = "var={id:"
_LONGEST_LINE = 1 << 20


class varNode:  # noqa: N801 - MegEngine's name
    """A variable that differs, or that such a variable depends on.

    `id` is its number as the text has it, `id:3`; `src_info` the text about it, "" for a variable that does
    not differ (`vitrual`, as MegEngine spells it).
    """

    var_node_dict: ClassVar[dict[str, "varNode"]] = {}
    var_node_root_dict: ClassVar[dict[str, "varNode"]] = {}

    def __init__(self, id: str, dependence_list: Sequence[str], src_info: str) -> None:
        self.id = id
        self.src_info = src_info
        self.vitrual = not src_info
        self.dependence_list: list[varNode] = []
        self.reference_list: list[varNode] = []
        for each in dependence_list:
            self.depend_on(_node_of(each))
        varNode.var_node_dict[_key(id)] = self

    def __repr__(self) -> str:
        return self.id

    @property
    def is_root(self) -> bool:
        """Whether it differs, and nothing that it depends on does."""
        return not self.vitrual and all(each.vitrual for each in self.dependence_list)

    @staticmethod
    def get_varNode(id: str) -> "varNode":  # noqa: N802 - MegEngine's name
        """Return the node of a number, `id:3` or `id::3`.

        Raises:
            KeyError: no variable that differs, nor one of their inputs, has it.
        """
        return varNode.var_node_dict[_key(id)]

    def get_dependence_list(self) -> "list[varNode]":
        """Return the variables that it was computed from (upstream)."""
        return self.dependence_list

    def get_reference_list(self) -> "list[varNode]":
        """Return the variables that differ and were computed from it (downstream)."""
        return self.reference_list

    def show_src_info(self) -> None:
        """Print the text about it."""
        print("\n".join(map(printable, self.src_info.split("\n"))))

    def depend_on(self, other: "varNode") -> None:
        """Take note of a variable that it was computed from."""
        if other not in self.dependence_list:
            self.dependence_list.append(other)
            other.reference_list.append(self)


def _key(id: str) -> str:
    """Return a number as either spelling has it."""
    return id.replace("::", ":")


def _node_of(id: str) -> varNode:
    found = varNode.var_node_dict.get(_key(id))
    return found if found is not None else varNode(id, (), "")


def get_dependence(string: str, src_info: str) -> None:
    """Make a node of the title of a variable, which has its number and those of its inputs."""
    first, *others = (
        (word + number for word, number in _ID.findall(string)) if _ID.search(string) else [""]
    )
    if not first:
        return
    node = _node_of(first)
    node.src_info, node.vitrual = src_info, False
    for each in others:
        node.depend_on(_node_of(each))


def parse(filename: str | Path) -> dict[str, varNode]:
    """Read a text of `compare_binary_iodump`, and return the roots by their numbers.

    Raises:
        DumpError: it cannot be read.
    """
    varNode.var_node_dict.clear()
    varNode.var_node_root_dict.clear()
    titles = ["", ""]
    now = 1
    try:
        with open_text(Path(filename)) as file:
            while line := file.readline(_LONGEST_LINE):
                if any(end in line for end in _ENDS):
                    get_dependence(titles[0], "\n".join([*titles, line]))
                    titles, now = ["", ""], 1
                    continue
                if _TITLE in line:
                    now ^= 1
                    titles[now] = ""
                titles[now] += line.strip()
    except OSError as error:
        raise DumpError(f"cannot read {filename}: {error.strerror or error}") from None
    roots = (node for node in varNode.var_node_dict.values() if node.is_root)
    varNode.var_node_root_dict.update((node.id, node) for node in sorted(roots, key=_number))
    return varNode.var_node_root_dict


def _number(node: varNode) -> int:
    return int(node.id.rpartition(":")[2])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    parser = argparse.ArgumentParser(
        "accuracy_shake_var_tree", description=__doc__.split("\n")[0] if __doc__ else None
    )
    parser.add_argument("filename", help="what compare_binary_iodump printed")
    try:
        roots = parse(parser.parse_args(arguments).filename)
    except PrecheckError as error:
        print(printable(f"accuracy_shake_var_tree: error: {error}"), file=sys.stderr)
        return UNUSABLE
    print("varnode root:")
    for name, node in roots.items():
        print(name)
        print("detail info:")
        node.show_src_info()
    return PASSED


if __name__ == "__main__":
    sys.exit(main())
