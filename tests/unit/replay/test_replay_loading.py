"""What a command has imported before it looks at its dump."""

import pickle
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.replay.config import RunConfig
from ray_precheck.replay.loading import load_checker, loaded_early
from ray_precheck.runtime.workers import fork_server
from ray_precheck.runtime.workers.fork_server import Load, ServerAddress, kept_servers

pytestmark = pytest.mark.unit
HEADER = '{"task": "statistics", "level": "L1", "framework": "pytorch", "data": {}}'


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What each server that is started imports, as `partial` objects; none is started."""
    loads: list[Any] = []

    class Server:
        is_alive = True

        def __init__(self, load: Load, environment: Mapping[str, str]) -> None:
            assert environment["PYTHONPATH"] is not None
            loads.append(pickle.loads(pickle.dumps(load)))
            self.address = ServerAddress(str(len(loads)), 0)

        def close(self) -> None:
            loads.append("closed")

    monkeypatch.setattr(fork_server, "ForkServer", Server)
    monkeypatch.setattr(fork_server, "_KEPT", [])
    return loads


def config(path: Path, **options: Any) -> RunConfig:
    return RunConfig(path, **options)


@pytest.mark.parametrize("named", ["dump.json", "."])
def test_the_framework_is_read_from_the_header(
    tmp_path: Path, begun: list[Any], named: str
) -> None:
    (tmp_path / "dump.json").write_text(HEADER)
    path = tmp_path / named
    with loaded_early(config(path), "", path):
        (load,) = begun
        assert (load.func, load.args) == (load_checker, ("pytorch",))
        # The run, which needs the same, finds it.
        with kept_servers() as servers:
            assert servers.open(load, debug=False) == ServerAddress("1", 0)
    assert begun[1:] == ["closed"]


def test_the_framework_that_was_given_counts(tmp_path: Path, begun: list[Any]) -> None:
    (tmp_path / "dump.json").write_text(HEADER)
    with loaded_early(config(tmp_path), "mindspore", tmp_path / "dump.json"):
        assert begun[0].args == ("mindspore",)


@pytest.mark.parametrize("text", [None, "{", '{"framework": "jax", "data": {}}', "\0" * 100])
def test_where_it_cannot_be_known_yet_nothing_is_started(
    tmp_path: Path, begun: list[Any], text: str | None
) -> None:
    path = tmp_path / "dump.json"
    if text is not None:
        path.write_text(text)
    with loaded_early(config(path), "", path):
        assert begun == []


def test_workers_of_a_cluster_import_for_themselves(tmp_path: Path, begun: list[Any]) -> None:
    (tmp_path / "dump.json").write_text(HEADER)
    path = tmp_path / "dump.json"
    with loaded_early(config(path, address="auto"), "", path):
        assert begun == []
    with loaded_early(config(path, address="local"), "", path):
        assert len(begun) == 1


def test_a_server_that_has_died_is_replaced_and_few_are_kept(begun: list[Any]) -> None:
    with kept_servers() as servers:
        first = servers.open(load_checker, debug=False)
        servers._servers[next(iter(servers._servers))].is_alive = False  # type: ignore[misc]
        assert servers.open(load_checker, debug=False) != first
        for framework in ("pytorch", "mindspore", "mindtorch"):
            servers.open(partial(load_checker, framework), debug=False)
        assert len(servers._servers) == 2
