"""Nodes that die, lose their link, and join while a run goes on."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import released
from dumps import additions, broken, write_dump
from networks import Network, can_make_networks
from squares import TABLES, Opener, Squares
from squares_run import COUNT, CRASHING, STAMP, run_squares

from ray_precheck.runtime.places.cluster import Roster, open_cluster
from ray_precheck.runtime.ray_actors import RayActors
from ray_precheck.store.resume import hold_files
from ray_precheck.store.resume import start_run as start_files
from ray_precheck.store.settings import RunSettings

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        not can_make_networks(), reason="network namespaces need root and the command ip"
    ),
]


@pytest.fixture(scope="module")
def whole_network() -> Iterator[Network]:
    with Network() as made:
        made.start(1)
        yield made


@pytest.fixture
def network(whole_network: Network) -> Network:
    """Return a network of one machine, on which slow calls are slow."""
    whole_network.leave_alone(1)
    for mark in whole_network.marks.iterdir():
        mark.unlink()
    return whole_network


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dump whose costly calls, which come first, take a minute unless they may go."""
    calls = [broken("modified_bessel_i1", number, 300) for number in range(300)]
    return write_dump(tmp_path_factory.mktemp("nodes") / "dump.json", additions(200), *calls)


@pytest.fixture(scope="module")
def undisturbed(
    dump: Path, cluster_address: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[bytes, bytes]:
    """Return both files of a run on one machine."""
    from ray_precheck import precheck

    out = tmp_path_factory.mktemp("alone")
    with released():
        report = precheck(dump, out=out, devices=(0, 1), address=cluster_address)
    assert report.completed, report
    assert report.summary.total == report.summary.passes == 500
    return report.files.result.read_bytes(), report.files.details.read_bytes()


def start_run(network: Network, dump: Path, out: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "ray_precheck", "run_ut", "-api_info", str(dump)]
    options = ["-o", str(out), "-d", "0", "1", "--address", network.address]
    return network.spawn(1, [*command, *options], subprocess.PIPE)


def wait_for_calls(network: Network, machines: int) -> None:
    """Wait until slow calls have been run on so many machines."""
    until = time.monotonic() + 300
    while len(list(network.marks.glob("machine*"))) < machines:
        assert time.monotonic() < until, [network.titles(number) for number in network.numbers]
        time.sleep(0.05)


def files_of(out: Path) -> tuple[bytes, bytes]:
    (result,) = out.glob("accuracy_checking_result_*.csv")
    (details,) = out.glob("accuracy_checking_details_*.csv")
    return result.read_bytes(), details.read_bytes()


@pytest.mark.parametrize(
    "fault",
    [
        "link down",
        pytest.param("raylet killed", marks=pytest.mark.exhaustive),
        # With another kind of job: below.
        pytest.param("everything killed", marks=pytest.mark.exhaustive),
    ],
)
def test_the_records_of_a_node_that_dies_are_done_elsewhere(
    network: Network, dump: Path, undisturbed: tuple[bytes, bytes], tmp_path: Path, fault: str
) -> None:
    number = network.start_another()
    run = start_run(network, dump, tmp_path)
    wait_for_calls(network, machines=2)
    {
        "raylet killed": network.kill_raylet,
        "everything killed": network.kill,
        "link down": network.unplug,
    }[fault](number)
    (network.marks / "go").touch()
    output = run.communicate(timeout=400)[0].decode()
    assert run.returncode == 0, output
    assert f"node {network.host(number)} is gone: cpu:1 moves to {network.host(1)}" in output
    assert "Traceback" not in output
    assert files_of(tmp_path) == undisturbed


def test_a_node_that_joins_later_is_used(
    network: Network, dump: Path, undisturbed: tuple[bytes, bytes], tmp_path: Path
) -> None:
    run = start_run(network, dump, tmp_path)
    wait_for_calls(network, machines=1)
    number = network.start_another()
    wait_for_calls(network, machines=2)
    (network.marks / "go").touch()
    output = run.communicate(timeout=400)[0].decode()
    assert run.returncode == 0, output
    assert f"a node has joined: cpu:1 moves to {network.host(number)}" in output
    assert files_of(tmp_path) == undisturbed


SQUARES_RUN = Path(__file__).with_name("squares_run.py")


def test_another_kind_of_job_loses_a_node_and_has_the_bytes_of_a_run_on_one_node(
    network: Network, cluster_address: str, tmp_path: Path
) -> None:
    lost, kept = network.start_another(), network.start_another()
    out = tmp_path / "out"
    command = [sys.executable, str(SQUARES_RUN), network.address, str(out), "3", str(network.marks)]
    with network.spawn(1, command, subprocess.PIPE) as run:
        wait_for_calls(network, machines=3)
        network.kill(lost)
        assert run.stdout is not None
        # The numbers are slow until the loss is told: the others could do what is left before that.
        said = b""
        while f"node {network.host(lost)} is gone: ".encode() not in said:
            line = run.stdout.readline()
            assert line, said.decode()
            said += line
        (network.marks / "go").touch()
        output = (said + run.communicate(timeout=400)[0]).decode()
    assert run.returncode == 0, output
    assert "Traceback" not in output

    alone = start_files(tmp_path / "alone", STAMP, RunSettings({}), TABLES)
    job = Squares(COUNT, Opener(CRASHING))
    with open_cluster(cluster_address, debug=False) as nodes, hold_files(alone) as held:
        assert run_squares(job, RayActors(Roster(nodes, "", print)), held, set(), 1)
    for path in (alone.result, alone.details):
        assert (out / path.name).read_bytes() == path.read_bytes()
    rows = alone.result.read_bytes().splitlines()[1:]
    assert len(rows) == COUNT
    assert sum(b",pass," in row for row in rows) == COUNT - len(CRASHING)
    # What the lost machine had in hand was done by the others.
    assert {network.host(1), network.host(kept)} <= machines_of(out / alone.timeline.name)


def machines_of(timeline: Path) -> set[str]:
    """Return the addresses of the machines whose rows have a record."""
    events = json.loads(timeline.read_text())
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    return {names[event["pid"]] for event in events if event["ph"] == "X"}
