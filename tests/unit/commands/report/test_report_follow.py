"""A page that follows a run: who may see it, what it asks, and that it ends."""

import gzip
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from report_samples import sample_view

from ray_precheck.commands.report import follow
from ray_precheck.commands.report.found import RunGroup
from ray_precheck.errors import UsageError
from ray_precheck.schema.view import View, ViewState

pytestmark = pytest.mark.unit
STAMP = "20260101120000"


@dataclass
class Followed:
    """A server in a thread of this process, and the run that it follows."""

    out: Path
    made: int = 0
    address: list[str] = field(default_factory=list)
    thread: threading.Thread | None = None

    @property
    def lock(self) -> Path:
        return self.out / f"naive_{STAMP}.lock"

    def views(self, groups: Sequence[RunGroup]) -> tuple[View, ...]:
        assert [run.stamp for group in groups for run in group.runs] == [STAMP]
        self.made += 1
        state = ViewState.RUNNING if self.lock.exists() else ViewState.FINISHED
        return (replace(sample_view(20), state=state, sentence=f"page {self.made}"),)

    def ask(self, path: str, host: str = "", method: str = "GET") -> HTTPResponse:
        parts = urlsplit(self.address[0])
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=10)
        headers = {"Host": host} if host else {}
        connection.request(method, path, headers=headers)
        return connection.getresponse()

    @property
    def root(self) -> str:
        return urlsplit(self.address[0]).path


@contextmanager
def followed(tmp_path: Path) -> Iterator[Followed]:
    found = Followed(tmp_path)
    (tmp_path / f"naive_{STAMP}.csv").write_text("a")
    found.lock.touch()
    thread = threading.Thread(
        target=follow.follow_run, args=(tmp_path, found.views, found.address.append)
    )
    found.thread = thread
    thread.start()
    try:
        until = time.monotonic() + 30
        while not found.address and time.monotonic() < until:
            time.sleep(0.01)
        yield found
    finally:
        found.lock.unlink(missing_ok=True)
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_LEAST_S", 0.0)
    monkeypatch.setattr(follow, "_SHARE", 1e9)
    monkeypatch.setattr(follow, "_AFTER_END_S", 1.0)


def body(answer: HTTPResponse) -> bytes:
    assert answer.status == 200
    return gzip.decompress(answer.read())


def test_only_who_knows_the_address_sees_the_page(tmp_path: Path) -> None:
    with followed(tmp_path) as run:
        assert urlsplit(run.address[0]).hostname == "127.0.0.1"
        assert len(run.root) > 30
        assert b"page" in body(run.ask(run.root))
        for path in ("/", "/data", f"{run.root[:-2]}/", run.root.upper(), f"{run.root}../x", "//"):
            assert run.ask(path).status == 404
        assert run.ask(run.root, host="evil.example:80").status == 404
        for method in ("POST", "PUT", "DELETE"):
            assert run.ask(run.root, method=method).status == 501


def test_new_data_are_given_where_files_have_changed(tmp_path: Path) -> None:
    with followed(tmp_path) as run:
        first = run.ask(f"{run.root}data?since=")
        tag = first.headers["ETag"]
        answer = json.loads(body(first))
        assert (
            answer["report"]["views"][0]["sentence"] == "page 2"
        )  # the first asked whether it runs
        assert len(answer["blobs"]) > 5
        assert run.ask(f"{run.root}data?since={tag}").status == 204
        assert run.made == 2
        (tmp_path / f"naive_{STAMP}.csv").write_text("ab")
        changed = run.ask(f"{run.root}data?since={tag}")
        assert json.loads(body(changed))["report"]["views"][0]["sentence"] == "page 3"


def test_the_server_shows_the_end_of_the_run_and_ends(tmp_path: Path) -> None:
    with followed(tmp_path) as run:
        run.lock.unlink()
        until = time.monotonic() + 30
        state = ""
        while state != "finished" and time.monotonic() < until:
            answer = json.loads(body(run.ask(f"{run.root}data?since=")))
            state = answer["report"]["views"][0]["state"]
        assert state == "finished"
        assert run.thread is not None
        run.thread.join(60)
        with pytest.raises(ConnectionRefusedError):
            run.ask(run.root)


def test_another_run_in_the_folder_does_not_end_it(tmp_path: Path) -> None:
    with followed(tmp_path) as run:
        (tmp_path / "naive_20260101120001.csv").touch()
        (tmp_path / f"naive_{STAMP}.csv").write_text("ab")
        answer = json.loads(body(run.ask(f"{run.root}data?since=")))
        assert answer["report"]["views"][0]["state"] == "running"
        time.sleep(1.5)  # The server looks once in a second whether the run has ended.
        assert run.ask(f"{run.root}data?since=").status == 200
        assert run.thread is not None
        run.thread.join(2.0)
        assert run.thread.is_alive()


def test_pages_are_made_so_seldom_that_they_take_their_share_of_a_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_SHARE", 1e-9)
    with followed(tmp_path) as run:
        path = tmp_path / f"naive_{STAMP}.csv"
        for number in range(20):
            path.write_text("a" * number)
            answer = run.ask(f"{run.root}data?since=")
            assert json.loads(body(answer))["report"]["follow"]["every_s"] > 0
        assert run.made == 2


def test_a_run_that_has_ended_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / f"naive_{STAMP}.csv").touch()
    ended = Followed(tmp_path)
    with pytest.raises(UsageError, match=r"no run goes on in .*; without --follow its page is"):
        follow.follow_run(tmp_path, ended.views, ended.address.append)
