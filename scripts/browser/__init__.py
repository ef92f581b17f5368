"""A browser that a test or a script drives: `drive.mjs` in a process of its own, asked by lines of JSON.

Comes in: pages, and commands of `drive.mjs`. Goes out: their answers. Called by tests/web and report_size.
"""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

DRIVER = Path(__file__).with_name("drive.mjs")
WEB = Path(__file__).parents[2] / "ray_precheck/commands/report/web"
PROGRAMS = {"chromium": "chromium", "firefox": "firefox-esr"}


class Browser:
    """A browser with one page.

    Raises:
        RuntimeError: the browser ended, or a command failed (in `ask` and all that call it).
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            ["node", str(DRIVER), name, str(shutil.which(PROGRAMS[name]))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, do: str, **rest: Any) -> Any:
        """Return the answer to a command of `drive.mjs`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **rest}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with exit code {self._process.wait(30)}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self.name}: {do} {str(rest)[:300]}: {answer['error']}")
        return answer["value"]

    def open(self, path: Path, **rest: Any) -> float:
        """Open a page, and return after how many seconds its verdict stood there."""
        return float(self.ask("open", path=str(path), **rest)["seconds"])

    def js(self, code: str) -> Any:
        """Return the value of an expression in the page."""
        return self.ask("evaluate", code=code)

    def wait(self, code: str, timeout_s: float = 20) -> None:
        """Wait until an expression in the page is true."""
        self.ask("wait", code=code, timeout_s=timeout_s)

    @property
    def pid(self) -> int:
        """The process under which all of the browser runs."""
        return self._process.pid

    def close(self) -> None:
        """End the browser."""
        try:
            self._process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def missing(name: str) -> str:
    """Return what a browser's tests lack, "" for nothing."""
    if shutil.which("node") is None:
        return "node is not on the PATH"
    if not (WEB / "node_modules/puppeteer-core").is_dir():
        return f"`npm ci` was not run in {WEB}"
    return "" if shutil.which(PROGRAMS[name]) else f"{PROGRAMS[name]} is not on the PATH"
