"""The dumps of several ranks in one Ray session, on real workers."""

from pathlib import Path

import pytest
from dumps import additions, killer, write_dump

from ray_precheck import RunConfig, find_dumps, precheck, run_ranks
from ray_precheck.runtime.places import choice as places

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("joins", [True, False])
def test_ranks_share_a_session_and_write_the_bytes_of_runs_of_their_own(
    tmp_path: Path, cluster_address: str, monkeypatch: pytest.MonkeyPatch, joins: bool
) -> None:
    root = tmp_path / "step0"
    for rank, parts in (("rank0", (additions(3),)), ("rank1", (additions(2, 5), killer()))):
        (root / rank).mkdir(parents=True)
        write_dump(root / rank / "dump.json", *parts)
    opened: list[str] = []
    open_nodes = places.open_nodes

    def counted(config: RunConfig, *arguments: object, **options: object) -> object:
        opened.append(config.address)
        return open_nodes(config, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(places, "open_nodes", counted)
    address = cluster_address if joins else ""
    config = RunConfig(root, out=tmp_path / "all", device_type="cpu", address=address)
    report = run_ranks(config, find_dumps(root), show_progress=False)
    assert (report.completed, report.stop_reason) == (True, "")
    assert opened == [address]
    assert [each.summary.errors for each in report.reports] == [0, 1]
    for rank, each in zip(("rank0", "rank1"), report.reports, strict=True):
        alone = precheck(
            root / rank, out=tmp_path / rank, device_type="cpu", address=cluster_address
        )
        assert each.files.result.parent == tmp_path / "all" / "step0" / rank
        assert each.files.details.read_bytes() == alone.files.details.read_bytes()
        assert each.files.result.read_bytes() == alone.files.result.read_bytes()
