"""The dumps of several ranks in one Ray session, on real workers."""

from pathlib import Path

import pytest
from dumps import additions, killer, write_dump

from ray_precheck import RunConfig, find_dumps, precheck, run_ranks
from ray_precheck.runtime.places import choice as places

pytestmark = pytest.mark.cluster


RANKS = {"rank0": [additions(3)], "rank1": [additions(2, 5), killer()]}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a step with the dumps of two ranks."""
    folder = tmp_path_factory.mktemp("ranks") / "step0"
    for rank, parts in RANKS.items():
        (folder / rank).mkdir(parents=True)
        write_dump(folder / rank / "dump.json", *parts)
    return folder


@pytest.fixture(scope="module")
def alone(root: Path, cluster_address: str) -> list[tuple[bytes, bytes]]:
    """Return both files of a run of each rank alone."""
    found = []
    for rank in RANKS:
        out = root.parent / rank
        files = precheck(root / rank, out=out, device_type="cpu", address=cluster_address).files
        found.append((files.result.read_bytes(), files.details.read_bytes()))
    return found


@pytest.mark.parametrize(
    "joins",
    # That a cluster is joined: test_cluster_captured_ranks.
    [False, pytest.param(True, marks=pytest.mark.exhaustive)],
)
def test_ranks_share_a_session_and_write_the_bytes_of_runs_of_their_own(
    root: Path,
    alone: list[tuple[bytes, bytes]],
    tmp_path: Path,
    cluster_address: str,
    monkeypatch: pytest.MonkeyPatch,
    joins: bool,
) -> None:
    opened: list[str] = []
    open_nodes = places.open_nodes

    def counted(config: RunConfig, *arguments: object, **options: object) -> object:
        opened.append(config.address)
        return open_nodes(config, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(places, "open_nodes", counted)
    address = cluster_address if joins else "local"
    config = RunConfig(root, out=tmp_path / "all", device_type="cpu", address=address)
    report = run_ranks(config, find_dumps(root), show_progress=False)
    assert (report.completed, report.stop_reason) == (True, "")
    assert opened == [address]
    assert [each.summary.errors for each in report.reports] == [0, 1]
    files = [each.files for each in report.reports]
    assert [each.result.parent for each in files] == [
        tmp_path / "all" / "step0" / rank for rank in RANKS
    ]
    assert [(each.result.read_bytes(), each.details.read_bytes()) for each in files] == alone
