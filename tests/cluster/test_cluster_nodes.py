"""Nodes that die, lose their link, and join while a run goes on."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from dumps import additions, slow, write_dump
from networks import Network, can_make_networks

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        not can_make_networks(), reason="network namespaces need root and the command ip"
    ),
]


@pytest.fixture
def network() -> Iterator[Network]:
    with Network() as made:
        made.start(1)
        yield made


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dump that takes about 10 seconds on one device, the costly calls first."""
    calls = [slow(number, 600) for number in range(40)]
    return write_dump(tmp_path_factory.mktemp("nodes") / "dump.json", additions(1000), *calls)


@pytest.fixture(scope="module")
def undisturbed(dump: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """Return both files of a run on one machine."""
    from ray_precheck import precheck

    report = precheck(dump, out=tmp_path_factory.mktemp("alone"), devices=(0, 1))
    assert report.completed, report
    return report.files.result.read_bytes(), report.files.details.read_bytes()


def start_run(network: Network, dump: Path, out: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "ray_precheck", "run_ut", "-api_info", str(dump)]
    options = ["-o", str(out), "-d", "0", "1", "--address", network.address]
    return network.spawn(1, [*command, *options], subprocess.PIPE)


def wait_for_batch(network: Network, number: int) -> None:
    """Wait until a worker on this node runs a batch."""
    until = time.monotonic() + 60
    while not any(title.startswith("ray::Worker.run") for title in network.titles(number)):
        assert time.monotonic() < until, network.titles(number)
        time.sleep(0.05)


def files_of(out: Path) -> tuple[bytes, bytes]:
    (result,) = out.glob("accuracy_checking_result_*.csv")
    (details,) = out.glob("accuracy_checking_details_*.csv")
    return result.read_bytes(), details.read_bytes()


@pytest.mark.parametrize("fault", ["raylet killed", "everything killed", "link down"])
def test_the_records_of_a_node_that_dies_are_done_elsewhere(
    network: Network, dump: Path, undisturbed: tuple[bytes, bytes], tmp_path: Path, fault: str
) -> None:
    network.start(2)
    run = start_run(network, dump, tmp_path)
    wait_for_batch(network, 2)
    {
        "raylet killed": network.kill_raylet,
        "everything killed": network.kill,
        "link down": network.unplug,
    }[fault](2)
    output = run.communicate(timeout=120)[0].decode()
    assert run.returncode in (0, 1), output  # whether all vectors of svd are told apart
    assert f"node {network.host(2)} is gone: cpu:1 moves to {network.host(1)}" in output
    assert "Traceback" not in output
    assert files_of(tmp_path) == undisturbed


def test_a_node_that_joins_later_is_used(network: Network, tmp_path: Path) -> None:
    # Long enough for a second Ray to start meanwhile.
    calls = [slow(number, 600) for number in range(120)]
    dump = write_dump(tmp_path / "dump.json", additions(100), *calls)
    run = start_run(network, dump, tmp_path / "out")
    wait_for_batch(network, 1)
    network.start(2)
    wait_for_batch(network, 2)
    output = run.communicate(timeout=200)[0].decode()
    assert f"a node has joined: cpu:1 moves to {network.host(2)}" in output
    assert files_of(tmp_path / "out")[0].count(b"\n") == 221
