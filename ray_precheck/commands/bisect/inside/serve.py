"""A process that runs trials: the half that stands in the interpreter of the framework.

    python serve.py INSIDE.py REQUESTS ANSWERS PARENT

Comes in: the path of a target's `inside.py`, two descriptors of pipes, and the process id of the parent, with
which this process ends. Goes out: a line of JSON for each line that comes. The first line holds the settings
for `open_target`, the others are requests for its `answer`. Started by `commands.bisect.trial_process`.

That interpreter may be an older one without this package, so that nothing but the standard library is used.
"""

import ctypes
import importlib.util
import json
import os
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Answer requests until their pipe is closed."""
    inside, requests_fd, answers_fd, parent = sys.argv[1:5]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        os._exit(1)
    # Ctrl-C of a terminal is for the command, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Modules of the user's own folder stay theirs: the folder of this script is none of theirs.
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != os.path.dirname(__file__)]
    opened: Any = None
    requests = os.fdopen(int(requests_fd), encoding="utf-8")
    answers = os.fdopen(int(answers_fd), "w", encoding="utf-8")
    for line in requests:
        request = json.loads(line)
        answer: dict[str, Any] = {"answer": {}}
        try:
            if opened is None:
                opened = _loaded(inside).open_target(request)
            else:
                answer = {"answer": opened.answer(request)}
        except BaseException as error:  # A framework may raise anything, SystemExit included.
            answer = {"error": _said(error)}
        sys.stdout.flush()
        sys.stderr.flush()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _loaded(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("inside", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["inside"] = module
    spec.loader.exec_module(module)
    return module


def _said(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


if __name__ == "__main__":
    main()
