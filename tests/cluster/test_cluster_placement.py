"""Where workers run on a cluster, with pretend NPUs: on one node, and on nodes with own networks."""

import contextlib
import json
import platform
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from conftest import label_option, started_head
from dumps import additions, write_dump
from networks import Network, can_make_networks
from placing import whereabouts

import ray_precheck
from ray_precheck.errors import DeviceError, UsageError
from ray_precheck.replay.config import RunConfig
from ray_precheck.runtime.places import cluster
from ray_precheck.runtime.places.cluster import Roster, living_nodes, open_cluster
from ray_precheck.runtime.places.devices import choose_kind
from ray_precheck.runtime.places.placement import DeviceRequest, place_slots

pytestmark = pytest.mark.cluster
needs_networks = pytest.mark.skipif(
    not can_make_networks(), reason="network namespaces need root and the command ip"
)
VERSION = ray_precheck.__version__
PLACING = Path(__file__).with_name("placing.py")


@pytest.fixture(scope="module")
def eight_npus() -> Iterator[str]:
    """The address of a node on loopback with 8 pretend NPUs, of which the variable hides none."""
    with tempfile.TemporaryDirectory(prefix="rpl-", ignore_cleanup_errors=True) as folder:
        options = ["--num-cpus=1", '--resources={"NPU": 8}', label_option("name", "the-node")]
        with started_head(Path(folder), *options, "--object-store-memory=100000000") as address:
            yield address


_TWO_DUMPS = """
import json, sys
from contextlib import ExitStack
from pathlib import Path
from ray_precheck.replay.config import RunConfig
from ray_precheck.runtime.places import probe
from ray_precheck.runtime.places.choice import Cluster, find_places

probe.DEVICE_FILES = {"npu": sys.argv[1] + "/davinci[0-9]*", "gpu": "/none*"}
probe._plugins = list
with ExitStack() as opened:
    config = RunConfig(Path("dump.json"))
    cluster = Cluster(config, opened)
    for _ in range(2):
        places = find_places(config, "pytorch", cluster, show=False)
        print(places.request.kind, places.are_open, *(slot.label for slot in places.slots))
        cluster.nodes(show=False)
"""


def test_devices_can_be_used_for_the_second_of_several_dumps_too(tmp_path: Path) -> None:
    """The nodes of the Ray that the first dump has started know what this machine has."""
    (tmp_path / "davinci0").touch()
    done = subprocess.run(
        [sys.executable, "-c", _TWO_DUMPS, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.splitlines() == ["npu False npu:0", "npu True npu:0"], done.stderr


def request(kind: str = "npu", **settings: Any) -> DeviceRequest:
    return DeviceRequest.of(RunConfig(Path("dump.json"), **settings), kind)


def test_a_node_says_what_it_has(eight_npus: str) -> None:
    with open_cluster(eight_npus, debug=False) as nodes:
        (node,) = nodes
        assert node.node_id == ray.get_runtime_context().get_node_id()
    assert node.visible["npu"] == tuple("01234567")
    assert node.visible["gpu"] == ()
    assert (node.cores, node.store_bytes) == (1, 100_000_000)
    assert (node.hostname, node.labels["name"]) == (socket.gethostname(), "the-node")
    assert node.versions["ray_precheck"] == VERSION
    assert node.versions["python"] == platform.python_version()
    assert choose_kind("auto", "mindspore", nodes) == "npu"


@pytest.mark.parametrize("devices", [(5, 0), "the-node:5,0", "all"])
def test_a_worker_on_an_npu_sees_that_one_alone(
    eight_npus: str, devices: tuple[int, ...] | str
) -> None:
    with open_cluster(eight_npus, debug=False) as nodes:
        slots = place_slots(request(devices=devices, exclude="the-node:1-4,6-7"), nodes)
        found = dict(zip((slot.label for slot in slots), whereabouts(slots), strict=True))
    assert found == {"npu:5": ("127.0.0.1", "5", ""), "npu:0": ("127.0.0.1", "0", "")}


def test_the_variable_of_the_driver_counts_on_its_machine(
    eight_npus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "6,2")
    with open_cluster(eight_npus, debug=False) as nodes:
        slots = place_slots(request(devices="all"), nodes)
        assert [(slot.label, slot.visible) for slot in slots] == [("npu:0", "6"), ("npu:1", "2")]
        with pytest.raises(DeviceError, match=r"-d 2: this machine .* has npu 0, 1;"):
            place_slots(request(devices=(2,)), nodes)


def test_devices_of_a_cluster_of_our_own_can_be_named(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump.json", additions(3))
    report = ray_precheck.precheck(
        dump, out=tmp_path, devices=f"{socket.gethostname()}:0,3", device_type="cpu"
    )
    assert report.completed, report
    assert report.summary.total == 3
    config = RunConfig(dump, out=tmp_path / "out", devices="all", exclude="127.0.0.1")
    with pytest.raises(DeviceError, match="no cpu is left to run on: there are "):
        ray_precheck.run(config, show_progress=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("devices", [(8,), "the-node:2-8", "other:0"])
def test_a_device_that_is_not_there_leaves_no_file(
    eight_npus: str, tmp_path: Path, devices: tuple[int, ...] | str
) -> None:
    dump = write_dump(tmp_path / "dump.json", additions(1))
    config = RunConfig(
        dump, out=tmp_path / "out", address=eight_npus, devices=devices, device_type="npu"
    )
    with pytest.raises(DeviceError, match="npu 0"):
        ray_precheck.run(config, show_progress=False)
    assert not (tmp_path / "out").exists()


def test_a_cluster_that_is_not_there_leaves_no_file(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump.json", additions(1))
    config = RunConfig(dump, out=tmp_path / "out", address="127.0.0.1:1", devices="all")
    with pytest.raises(UsageError, match="no Ray cluster answers at --address"):
        ray_precheck.run(config, show_progress=False)
    assert not (tmp_path / "out").exists()


def test_a_node_that_does_not_answer_in_time_is_left_out(
    eight_npus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    with open_cluster(eight_npus, debug=False):
        monkeypatch.setattr(cluster, "PROBE_TIMEOUT_S", 0.0)
        assert Roster([], VERSION, said.append).answers() == []
    assert said == [
        f"node 127.0.0.1 ({socket.gethostname()}) is left out: it did not answer in 0 s"
    ]


def test_a_node_that_joins_with_another_version_is_left_out(eight_npus: str) -> None:
    said: list[str] = []
    with open_cluster(eight_npus, debug=False) as nodes:
        assert Roster([], VERSION, said.append).answers() == nodes
        assert Roster([], "0.0.9", said.append).answers() == []
        # Who is known is not asked again.
        assert Roster(nodes, "0.0.9", said.append).nodes() == nodes
        assert [node.node_id for node in living_nodes()] == [node.node_id for node in nodes]
    assert said == [
        f"node 127.0.0.1 ({socket.gethostname()}) is left out: its ray_precheck is {VERSION},"
        " not 0.0.9"
    ]


def start_node(network: Network, number: int, npus: int, **environment: str) -> None:
    """Start a node that is called node-a, node-b, ... and has pretend NPUs."""
    before = dict(network.environment)
    network.environment.update(
        environment,
        RAY_OVERRIDE_RESOURCES=json.dumps({"NPU": npus} if npus else {}),
        RAY_OVERRIDE_LABELS=json.dumps({"name": f"node-{'?abc'[number]}"}),
    )
    network.start(number)
    network.environment.clear()
    network.environment.update(before)


@pytest.fixture(scope="module")
def whole_network() -> Iterator[Network]:
    with Network() as made:
        start_node(made, 1, 8)
        start_node(made, 2, 4, ASCEND_RT_VISIBLE_DEVICES="4,5,6,7")
        yield made


@pytest.fixture
def network(whole_network: Network) -> Network:
    """node-a with 8 NPUs, and node-b with 4 that its own variable calls 4 to 7."""
    whole_network.leave_alone(1, 2)
    return whole_network


class Placing:
    """The driver of placing.py on node 1: `slots` are where each is and what it sees."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self.slots: dict[str, list[str]] = {}
        while "label" in (told := self.hear()):
            self.slots[told["label"]] = told["where"]

    def hear(self) -> Any:
        """Return what it says next; Ray prints lines of its own about nodes."""
        assert self._process.stdout is not None
        while not (line := self._process.stdout.readline()).startswith(b"{"):
            assert line, "the driver has ended"
        return json.loads(line)

    def once_there_are(self, count: int) -> Any:
        """Return what has changed once there are as many nodes."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n".encode())
        self._process.stdin.flush()
        return self.hear()


@contextlib.contextmanager
def placing(network: Network, *arguments: str) -> Iterator[Placing]:
    with subprocess.Popen(
        ["ip", "netns", "exec", network.namespace(1), sys.executable, str(PLACING),
         network.address, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=network.environment, cwd=network.folder,
    ) as process:  # fmt: skip
        yield Placing(process)


@needs_networks
def test_devices_of_all_nodes_are_those_that_were_asked_for(network: Network) -> None:
    a, b = network.host(1), network.host(2)
    with placing(network, "npu", f"node-b:1,3,{a}:6-7", "node-a:7") as some:
        assert some.slots == {
            "node-b/npu:1": [b, "5", ""],
            "node-b/npu:3": [b, "7", ""],
            f"{a}/npu:6": [a, "6", ""],
        }
    # Both have the host name of this machine, so addresses tell them apart.
    with placing(network, "npu", "all", "node-a:0-5") as everything:
        assert everything.slots == {
            **{f"{a}/npu:{i}": [a, str(i), ""] for i in (6, 7)},
            **{f"{b}/npu:{i}": [b, str(i + 4), ""] for i in range(4)},
        }
    with placing(network, "cpu", "all") as on_the_cpu:
        assert on_the_cpu.slots == {f"{a}/cpu:0": [a, "", ""], f"{b}/cpu:0": [b, "", ""]}


@needs_networks
def test_a_node_that_joins_brings_devices_and_gets_them_again_when_it_comes_back(
    network: Network,
) -> None:
    c = network.host(3)
    brought = [f"{c}/npu:0", f"{c}/npu:1"]
    seen = {"where": [[c, "0", ""], [c, "1", ""]], "said": []}
    nothing = {"where": [], "said": []}
    with placing(network, "npu", "all") as driver:
        start_node(network, 3, 2)
        assert driver.once_there_are(3) == {"moved": [], "added": brought, "lost": []} | seen
        network.kill(3)
        assert driver.once_there_are(2) == {"moved": [], "added": [], "lost": brought} | nothing
        start_node(network, 3, 2)
        assert driver.once_there_are(3) == {"moved": brought, "added": [], "lost": []} | seen


@pytest.fixture
def old_package(tmp_path: Path) -> Path:
    """A folder with another version of this package, to be found first."""
    folder = tmp_path / "old"
    (folder / "ray_precheck" / "runtime").mkdir(parents=True)
    (folder / "ray_precheck" / "__init__.py").write_text('__version__ = "0.0.9"\n')
    for name in ("__init__", "probe"):  # What is asked there must not be looked up there.
        (folder / "ray_precheck" / "runtime" / f"{name}.py").write_text("raise ImportError\n")
    (folder / "numpy-1.0.dist-info").mkdir()
    (folder / "numpy-1.0.dist-info" / "METADATA").write_text("Name: numpy\nVersion: 1.0\n")
    return folder


@needs_networks
def test_another_version_of_the_package_is_refused_unless_its_node_is_left_out(
    network: Network, tmp_path: Path, old_package: Path
) -> None:
    start_node(network, 3, 0, PYTHONPATH=str(old_package))
    dump = write_dump(tmp_path / "dump.json", additions(3))

    def run(*options: str) -> tuple[int, str]:
        # Where no package lies, so that workers find that of their node.
        code = f"import os; os.chdir({str(tmp_path)!r}); from ray_precheck.cli import main; "
        arguments = ["run_ut", "-api_info", str(dump), "-o", str(tmp_path / "out"), *options]
        code += f"raise SystemExit(main({[*arguments, '--address', network.address]!r}))"
        process = network.spawn(1, [sys.executable, "-c", code], subprocess.PIPE)
        output = process.communicate(timeout=400)[0].decode()
        return process.returncode, output

    everywhere = ("--devices", "all", "--device-type", "cpu")
    status, output = run(*everywhere)
    assert status == 2, output
    assert f"this is ray_precheck {VERSION}, but " in output
    assert f"({network.host(3)}) has 0.0.9; install {VERSION} there" in output
    assert not (tmp_path / "out").exists()
    status, output = run(*everywhere, "--exclude", "node-c")
    assert status == 0, output
    assert "versions differ" not in output
    # The rest of what differs is a table: here numpy alone, as node 3 finds it.
    (old_package / "ray_precheck" / "__init__.py").write_text(f'__version__ = "{VERSION}"\n')
    status, output = run(*everywhere, "--exclude", "node-c:0", "--bench-workers", "0")
    assert status == 0, output
    table = output[output.index("warning: versions differ") :].splitlines()
    assert table[2].split()[0] == "numpy"
    assert table[2].split()[-1] == "1.0"
    assert "python" not in table[3]
