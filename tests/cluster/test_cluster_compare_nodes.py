"""Two captures are compared, and dumps searched, on a machine that does not see their folders."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from networks import Network, can_make_networks
from test_cluster_compare import CALLS, write_capture
from test_cluster_overflow import write_dumps

from ray_precheck.commands.compare.run import compare_captures
from ray_precheck.commands.locate.run import locate_captures
from ray_precheck.commands.overflow.options import OverflowConfig
from ray_precheck.commands.overflow.run import check_overflow
from scripts.speed.locate_scale import make_runs

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        not can_make_networks(), reason="network namespaces need root and the command ip"
    ),
]
COMMAND = """
import sys, together
from ray_precheck.running import run
from ray_precheck.cli import main

run.START_OF_RAY_S = 0.0
together.{begin}()
sys.exit(main(sys.argv[1:]))
"""
TOGETHER, GIVEN_UP = "begin_together", "begin_after_one_is_given_up"
# That a machine without the folders is given up is the same for every command: one shows it.
BEGIN = pytest.mark.parametrize(
    "begin", [TOGETHER, pytest.param(GIVEN_UP, marks=pytest.mark.exhaustive)]
)


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with captures and dumps that the other machine does not see."""
    folder = tmp_path_factory.mktemp("hidden")
    for side, scale in (("target", 1.01), ("golden", 1.0), ("noise", 1.001)):
        write_capture(folder / side, scale)
    write_dumps(folder / "dumps")
    make_runs(folder / "ranks", 4, 103, 2)
    return folder


@pytest.fixture(scope="module")
def network(hidden: Path) -> Iterator[Network]:
    with Network() as made:
        made.start(1)
        made.start(2, hidden=hidden)
        yield made


def run_on(network: Network, begin: str, *words: object) -> str:
    """Run a command on both machines; return what it has printed."""
    command = [sys.executable, "-c", COMMAND.format(begin=begin), *map(str, words)]
    where = ["--address", network.address, "-d", "0", "1"]
    output = network.spawn(1, [*command, *where], subprocess.PIPE).communicate(timeout=500)[0]
    assert b"Traceback" not in output, output.decode()
    return output.decode()


def tables(out: Path, stem: str) -> list[bytes]:
    found = sorted(out.glob(f"{stem}_*.csv"))
    assert len(found) == 2
    return [path.read_bytes() for path in found]


@pytest.mark.parametrize("begin", [TOGETHER, GIVEN_UP])
def test_captures_are_sent_to_a_machine_that_lacks_them_or_it_is_given_up(
    network: Network, hidden: Path, tmp_path: Path, begin: str
) -> None:
    sides = [hidden / name for name in ("target", "golden")]
    noise = hidden / "noise"
    (alone,) = compare_captures(
        *sides, out=tmp_path / "alone", standard="auto", noise=noise
    ).reports
    out = Path(hidden, "out")
    shutil.rmtree(out, ignore_errors=True)
    words = ["compare", "-tp", sides[0], "-gp", sides[1], "--noise", noise, "--standard", "auto"]
    shared = ["--shared-fs"] if begin == GIVEN_UP else []
    output = run_on(network, begin, *words, *shared, "-o", out)
    assert tables(out, "compare") == tables(tmp_path / "alone", "compare"), output
    (timeline,) = out.glob("*timeline*")
    events = json.loads(timeline.read_text())
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    slots = {names[event["pid"], event["tid"]] for event in events if event["ph"] == "X"}
    assert alone.summary.total == CALLS
    if begin == GIVEN_UP:
        assert f"{network.host(2)} has no folder" in output
        assert slots == {"cpu:0"}
    else:
        assert "cpu:1" in slots, output  # the other machine's


@BEGIN
def test_so_are_dumps(network: Network, hidden: Path, tmp_path: Path, begin: str) -> None:
    check_overflow(OverflowConfig(dump=hidden / "dumps", out=tmp_path / "alone"))
    out = Path(hidden, "found")
    shutil.rmtree(out, ignore_errors=True)
    shared = ["--shared-fs"] if begin == GIVEN_UP else []
    output = run_on(network, begin, "overflow_check", hidden / "dumps", *shared, "-o", out)
    assert tables(out, "overflow") == tables(tmp_path / "alone", "overflow"), output
    assert (f"{network.host(2)} has no folder" in output) == (begin == GIVEN_UP)


@BEGIN
@pytest.mark.parametrize(
    ("target", "golden", "words"),
    [
        ("target", "golden", ("calls", "values")),
        pytest.param(
            "ranks/target", "ranks/golden", ("dumps", "roots"), marks=pytest.mark.exhaustive
        ),
    ],
    ids=["replayed", "statistics"],
)
def test_so_are_the_captures_of_a_search(
    network: Network,
    hidden: Path,
    tmp_path: Path,
    begin: str,
    target: str,
    golden: str,
    words: tuple[str, str],
) -> None:
    sides = hidden / target, hidden / golden
    locate_captures(*sides, out=tmp_path / "alone")
    out = Path(hidden, "located")
    shutil.rmtree(out, ignore_errors=True)
    shared = ["--shared-fs"] if begin == GIVEN_UP else []
    asked = ["locate", "-tp", sides[0], "-gp", sides[1], *shared, "-o", out]
    output = run_on(network, begin, *asked)
    for stem in (f"locate_{words[0]}", f"locate_{words[1]}", "locate_2"):
        found, alone = (
            [path.read_bytes() for path in folder.glob(f"{stem}*.csv")]
            for folder in (out, tmp_path / "alone")
        )
        assert found == alone, output
        assert found
    assert (f"{network.host(2)} has no folder" in output) == (begin == GIVEN_UP)
