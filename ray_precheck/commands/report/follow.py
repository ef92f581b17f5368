"""A local page that follows a run until it ends.

Comes in: the path that `report` was given. Goes out: nothing but answers: to this machine alone, to those who
know the token in the address, and only what the files of the run say. Called by the command. The page is made
anew only when it is asked for and files have changed, and so seldom that it takes at most 1 % of a core.
"""

import gzip
import json
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias

from ray_precheck.commands.report.found import RunGroup, find_groups
from ray_precheck.commands.report.page import PageData, page_data, page_pieces
from ray_precheck.errors import PrecheckError, UsageError
from ray_precheck.schema.view import View, ViewState

# The share of a core that making pages may take.
_SHARE = 0.01
_LEAST_S = 2.0
# How long the server stays after the end of the run, so that the page shows it.
_AFTER_END_S = 15.0
_HERE = "127.0.0.1"
ViewsOf: TypeAlias = Callable[[Sequence[RunGroup]], tuple[View, ...]]


@dataclass(slots=True)
class _Latest:
    """The newest page. `tag` tells it from others; made anew by one thread at a time."""

    out: Path
    stamps: frozenset[str]
    views_of: ViewsOf
    tag: str = ""
    data: PageData = field(default_factory=lambda: PageData({}))
    every_s: float = _LEAST_S
    not_before: float = 0.0
    state: str = ""
    is_final: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def groups(self) -> tuple[RunGroup, ...]:
        """Return the runs that are followed; others that begin in the folder are not."""
        return find_groups(self.out, self.stamps)

    def renew(self) -> None:
        """Make the page anew where files have changed and it is time."""
        with self.lock:
            groups = self.groups()
            state = state_of_files(groups)
            if self.is_final or state == self.state or time.monotonic() < self.not_before:
                return
            began = time.process_time()
            views = self.views_of(groups)
            goes_on = any(view.state is ViewState.RUNNING for view in views)
            self.data = page_data(views, [str(self.out)], follow_s=self.every_s)
            took = time.process_time() - began
            self.every_s = max(_LEAST_S, took / _SHARE)
            self.data.report["follow"] = {"every_s": round(self.every_s, 1)}
            self.not_before = time.monotonic() + self.every_s
            self.state, self.tag = state, secrets.token_hex(8)
            self.is_final = not goes_on


def state_of_files(groups: Sequence[RunGroup]) -> str:
    """Return a text that changes when files of a run do."""
    parts = []
    for group in groups:
        for run in group.runs:
            for path in sorted(run.main.parent.glob(f"*_{run.stamp}*")):
                try:
                    found = path.stat()
                except OSError:
                    continue
                parts.append(f"{path.name} {found.st_size} {found.st_mtime_ns}")
    return "\n".join(parts)


def follow_run(out: Path, views_of: ViewsOf, tell: Callable[[str], None], port: int = 0) -> None:
    """Serve the page of a run until it has ended, or the process is stopped; `tell` gets the address.

    Raises:
        UsageError: no run goes on there, or the port is taken.
    """
    groups = find_groups(out)
    if all(view.state is not ViewState.RUNNING for view in views_of(groups)):
        raise UsageError(
            f"report --follow: no run goes on in {out}; without --follow its page is written"
        )
    stamps = frozenset(run.stamp for group in groups for run in group.runs)
    latest = _Latest(out, stamps, views_of)
    latest.renew()
    token = secrets.token_urlsafe(24)
    try:
        server = _Server((_HERE, port), _handler(latest, token))
    except OSError as error:
        raise UsageError(
            f"report --follow: cannot listen on port {port}: {error.strerror}"
        ) from None
    with server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        tell(f"http://{_HERE}:{server.server_address[1]}/{token}/")
        try:
            ended = 0.0
            while not ended or time.monotonic() < ended + _AFTER_END_S:
                time.sleep(1.0)
                if not ended and _has_ended(latest):
                    ended = time.monotonic()
        except KeyboardInterrupt:
            pass  # who looked has seen enough
        finally:
            server.shutdown()
            serving.join()


def _has_ended(latest: _Latest) -> bool:
    """Return whether the run has ended; a look at its lock alone."""
    if latest.is_final:
        return True
    try:
        groups = latest.groups()
    except PrecheckError:
        return True
    locks = (
        lock
        for group in groups
        for run in group.runs
        for lock in run.main.parent.glob(f"*_{run.stamp}.lock")
    )
    if any(lock.exists() for lock in locks):
        return False
    latest.not_before = 0.0
    latest.renew()
    return True


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A second --follow takes another port instead of answering in place of the first.
    allow_reuse_address = False


def _handler(latest: _Latest, token: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers who knows the token, and changes nothing."""

        def do_GET(self) -> None:
            """Give the page, or its data where they are newer than those that the page has."""
            path, _, query = self.path.partition("?")
            # A name that leads here from elsewhere (DNS rebinding) is no address of ours.
            host = self.headers.get("Host", "").rpartition(":")[0]
            known = host in (_HERE, "localhost") and secrets.compare_digest(
                path.encode().rpartition(b"/")[0], f"/{token}".encode()
            )
            if not known:
                self.send_error(404)
                return
            try:
                latest.renew()
            except PrecheckError:
                self.send_error(503)
                return
            name = path.rpartition("/")[2]
            if name == "":
                self._answer(b"".join(page_pieces(latest.data)), "text/html; charset=utf-8")
            elif name != "data":
                self.send_error(404)
            elif query == f"since={latest.tag}":
                self.send_response(204)
                self.end_headers()
            else:
                text = json.dumps({"report": latest.data.report, "blobs": latest.data.blobs})
                self._answer(text.encode(), "application/json")

        def _answer(self, body: bytes, kind: str) -> None:
            packed = gzip.compress(body, 1)
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(packed)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Referrer-Policy", "no-referrer")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("ETag", latest.tag)
            self.end_headers()
            self.wfile.write(packed)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing: the address has the token."""

    return Handler
