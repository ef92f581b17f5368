"""Captured tensors on machines that do not see the folder of the dump."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from conftest import DATA
from dumps import forward, many_times, tensor, write_dump
from networks import Network, can_make_networks
from test_cluster_bench import stages

from ray_precheck import PrecheckReport, precheck, rerun
from ray_precheck.commands.precheck.summary import summarise
from ray_precheck.schema.result import Verdict
from ray_precheck.store.tables import run_files

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        not can_make_networks(), reason="network namespaces need root and the command ip"
    ),
]
CAPTURE = "torch_llm_tensor"


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the other machine does not see."""
    return tmp_path_factory.mktemp("hidden")


@pytest.fixture(scope="module")
def network(hidden: Path) -> Iterator[Network]:
    with Network() as made:
        made.start(1)
        made.start(2, hidden=hidden)
        yield made


@pytest.fixture
def folder(hidden: Path) -> Path:
    """A folder of a test's own in the hidden one."""
    return Path(tempfile.mkdtemp(dir=hidden))


@pytest.fixture
def dump(folder: Path) -> Path:
    """Return a capture with tensors in a folder of its own, its calls many times over."""
    return many_times(Path(shutil.copytree(DATA / CAPTURE, folder / "capture")) / "dump.json", 10)


BOTH = ("-d", "0", "1")
COMMAND = "import sys; from ray_precheck.cli import main; sys.exit(main(sys.argv[1:]))"


def run_on(
    network: Network,
    dump: Path,
    out: Path,
    *options: str,
    devices: Sequence[str] = BOTH,
    prelude: str = "",
) -> tuple[PrecheckReport, str]:
    """Run the command after a prelude of Python; return its report and all that it has printed."""
    command = [sys.executable, "-c", f"{prelude}{COMMAND}", "run_ut", "-api_info", str(dump)]
    where = ["-o", str(out), "--address", network.address, *devices, *options]
    run = network.spawn(1, [*command, *where], subprocess.PIPE)
    output = run.communicate(timeout=400)[0].decode()
    assert "Traceback" not in output, output
    (result,) = out.glob("accuracy_checking_result_*.csv")
    return PrecheckReport(summarise(run_files(result)), run.returncode in (0, 1)), output


@pytest.mark.parametrize("tested", ["auto", pytest.param("device", marks=pytest.mark.exhaustive)])
def test_they_travel_through_the_object_store(
    network: Network, dump: Path, folder: Path, tested: str
) -> None:
    alone = precheck(dump, out=folder / "alone", tested=tested)
    prelude = "import together; together.begin_together(); "
    report, output = run_on(network, dump, folder / "out", "--tested", tested, prelude=prelude)
    assert report.completed, output
    assert report.files.result.read_bytes() == alone.files.result.read_bytes()
    assert report.files.details.read_bytes() == alone.files.details.read_bytes()
    assert any(row == "cpu:1" for row, _ in stages(report)), output  # the other machine's


@pytest.mark.exhaustive  # For `compare`: test_cluster_compare_nodes.
def test_a_machine_that_does_not_share_the_file_system_is_given_up_not_its_records(
    network: Network, dump: Path, folder: Path
) -> None:
    # All records are left to do when the other machine has tried three starts.
    prelude = "import together; together.begin_after_one_is_given_up(); "
    alone = precheck(dump, out=folder / "alone")
    report, output = run_on(network, dump, folder / "out", "--shared-fs", prelude=prelude)
    assert report.completed, output
    # It is not shared with the second machine, which therefore gets no record.
    assert f"{network.host(2)} has no folder" in output
    assert {row for row, _ in stages(report)} == {"cpu:0"}
    assert report.files.result.read_bytes() == alone.files.result.read_bytes()


def test_the_tensors_of_what_fails_are_saved_beside_the_results(
    network: Network, folder: Path
) -> None:
    # One unit in the last place of results up to 160,000 is far above the limit.
    wide = forward(tensor("float32", [40, 40], 8.0, 12.0))
    calls = [{f"Torch.exp.{number}.forward": wide} for number in range(40)]
    dump = write_dump(folder / "exp.json", *calls)
    # Everything is checked on the machine that does not see the folder of the results.
    devices = ("--devices", f"{network.host(2)}:0", "--bench-workers", "0")
    report, output = run_on(network, dump, folder / "out", "-save_error_data", devices=devices)
    assert report.completed, output
    failing = report.results.query("`Forward Test Success` == 'error'")["API Name"]
    assert len(failing) > 30
    saved = folder / "out" / "error_data" / report.files.errors.name
    assert {path.stem for path in saved.glob("*.json")} == set(failing)
    assert rerun(next(saved.glob("*.json"))).forward is Verdict.ERROR
