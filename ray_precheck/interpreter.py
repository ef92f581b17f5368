"""How a module of this package is started in a process of its own.

Called where check processes and the process of MSAdapter are started. Python's `-P` (3.11 and newer)
keeps files of the working directory from being taken for modules. An older Python, which lacks it, runs
one line that takes the working directory off the path before anything is imported.
"""

import sys

_SAFE_SINCE = (3, 11)
_AS_A_MODULE = (
    "import sys; sys.path[:1] = sys.path[:1] if sys.path[0] else []; import runpy;"
    " runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def module_command(module: str, version: tuple[int, ...] = sys.version_info[:2]) -> list[str]:
    """Return the command that runs a module by this Python, of this `version`; the arguments of the
    module are appended to it."""
    if version >= _SAFE_SINCE:
        return [sys.executable, "-P", "-m", module]
    return [sys.executable, "-c", _AS_A_MODULE, module]
