"""Switches of a framework that choose between fast kernels and slow, plain ones.

Comes in: the table of a framework (`descriptor.Framework.switches`). Goes out: a `SwitchBoard`, which runs a
block with some of the switches turned to their plain side. Called by `commands.naive`. A switch is declared
once, in the folder of its framework; this module imports none.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ray_precheck.descriptors.descriptor import find_framework, load_part
from ray_precheck.foreign import caught


def _always() -> bool:
    return True


def _never(*_: Any) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSwitch:
    """A setting of a framework with a plain side.

    `name` is the word in tables, `title` says what the switch turns off, `advice` is the line with which a
    program turns it off. `read` returns the value, `write` sets it, `plain` is the value of the plain side.
    `default` is the value of the other side, None for the value that is found when the process starts, before
    a backend changes it. `kinds` are the kinds of devices on which it has a meaning, () for all. `exists`
    says whether the installed framework has what it turns off.

    A switch with an `environment` is a setting that the framework reads once, when its process starts: its
    plain side is a process with these variables, and it has neither `read` nor `write`.
    """

    name: str
    title: str
    advice: str
    read: Callable[[], Any] = _never
    write: Callable[[Any], Any] = _never
    plain: Any = True
    default: Any = None
    kinds: tuple[str, ...] = ()
    exists: Callable[[], bool] = _always
    environment: Mapping[str, str] = field(default_factory=dict)

    def found(self) -> Any:
        """Return the value now; None where this version of the framework has no such setting, or where the
        variables of this process turn it off already."""
        there, _ = caught(self.exists)
        is_set = bool(self.environment) and self.environment.items() <= os.environ.items()
        if not there or is_set:
            return None
        value, _ = caught(self.read)
        return value


class SwitchBoard:
    """The switches that have a meaning on a kind of device, with the values that they had at first.

    It is made before the backend is opened: backends turn TF32 and HF32 off, and compute with one thread.
    """

    def __init__(self, switches: Sequence[KernelSwitch], kind: str) -> None:
        self._defaults: dict[str, Any] = {}
        self.switches: tuple[KernelSwitch, ...] = ()
        for each in switches:
            value = each.found() if not each.kinds or kind in each.kinds else None
            if value is not None:
                self.switches += (each,)
                self._defaults[each.name] = value if each.default is None else each.default

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the switches, in the order of the table."""
        return tuple(each.name for each in self.switches)

    def environment(self, plain: Collection[str]) -> dict[str, str]:
        """Return the variables of a process that has these switches at their plain side, {} for none."""
        chosen = (each.environment for each in self.switches if each.name in plain)
        return {key: value for each in chosen for key, value in each.items()}

    @contextmanager
    def turned(self, plain: Collection[str]) -> Iterator[None]:
        """Turn these switches to their plain side and all others to their default, inside the block.

        Those of the environment stay as they are, and names that the board does not have are left alone.
        """
        with ExitStack() as restored:
            for each in self.switches:
                if each.environment:
                    continue
                wanted = each.plain if each.name in plain else self._defaults[each.name]
                before = each.read()
                if before != wanted:
                    restored.callback(partial(each.write, before))
                    each.write(wanted)
            yield


def switches_of(framework: str) -> tuple[KernelSwitch, ...]:
    """Return the table of a framework, () where it has none; imports the framework."""
    part = find_framework(framework).switches
    return tuple(load_part(part)) if part else ()
