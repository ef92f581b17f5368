"""Whole runs on a real Ray cluster: rows, bytes, resume, the Python function."""

from pathlib import Path

import pytest
from conftest import DATA
from dumps import additions, write_dump

from ray_precheck import DeviceError, PrecheckReport, ResumeError, precheck
from ray_precheck.store.tables import RunFiles

pytestmark = pytest.mark.cluster


def run(dump: Path, out: Path, address: str, *devices: int, **options: object) -> PrecheckReport:
    return precheck(dump, out=out, devices=devices or (0,), address=address, **options)


def both_files(report: PrecheckReport) -> tuple[bytes, bytes]:
    return report.files.result.read_bytes(), report.files.details.read_bytes()


@pytest.mark.parametrize(
    ("capture", "devices"),
    [
        ("mindspore_llm", (0, 1)),
        pytest.param("torch_cnn", (0, 1, 2, 3), marks=pytest.mark.exhaustive),
        pytest.param("mindspore_llm", (0, 1, 2, 3), marks=pytest.mark.exhaustive),
    ],
)
def test_any_number_of_devices_writes_the_same_bytes(
    capture: str, devices: tuple[int, ...], tmp_path: Path, cluster_address: str
) -> None:
    dump = DATA / capture / "dump.json"
    one = run(dump, tmp_path / "one", cluster_address, 0)
    more = run(dump, tmp_path / "more", cluster_address, *devices)
    assert one.completed
    assert more.completed
    assert both_files(more) == both_files(one)


def test_one_process_runs_on_a_cluster_and_on_ones_of_its_own_in_turn(
    tmp_path: Path, cluster_address: str
) -> None:
    dump = write_dump(tmp_path / "dump.json", additions(3))
    for number, address in enumerate(["", cluster_address, ""]):
        report = precheck(dump, out=tmp_path / str(number), devices=(0,), address=address)
        assert report.completed, report.stop_reason


def test_the_function_returns_both_tables_with_a_row_for_every_call_in_dump_order(
    tmp_path: Path, cluster_address: str
) -> None:
    report = run(DATA / "torch_llm_tensor" / "dump.json", tmp_path, cluster_address, 0, 1)
    results, details = report.results, report.details
    assert list(results.columns) == [
        "API Name", "Forward Test Success", "Backward Test Success", "Message",
    ]  # fmt: skip
    assert list(details.columns) == [
        "API Name", "Bench Dtype", "Tested Dtype", "Shape", "Cosine", "MaxAbsErr",
        "MaxRelativeErr", "Status", "Message",
    ]  # fmt: skip
    assert results["API Name"].iloc[0] == "Functional.embedding.0"
    assert len(results) == report.summary.total == 22
    assert set(results["Forward Test Success"]) == {"pass"}
    assert details["MaxAbsErr"].max() < 1e-4


def test_a_resumed_run_does_only_what_is_left_and_ends_with_the_same_bytes(
    cluster_address: str, finished: tuple[Path, RunFiles]
) -> None:
    dump, files = finished
    result, details = files.result, files.details
    whole = result.read_bytes(), details.read_bytes()
    # Killed between the details of some calls and their result rows, in the middle of a row.
    result.write_bytes(whole[0][:300])
    done = result.read_bytes().count(b"\n") - 1
    details.write_bytes(whole[1][: whole[1].index(b"Tensor.add.25") + 12])
    resumed = run(dump, result.parent, cluster_address, 0, 1, resume_csv=result)
    assert 0 < done < 20
    assert resumed.files.result == result
    assert both_files(resumed) == whole


def test_rows_that_msprobe_wrote_count_as_done(tmp_path: Path, cluster_address: str) -> None:
    dump = write_dump(tmp_path / "dump.json", additions(5))
    result = tmp_path / "accuracy_checking_result_20260101120000.csv"
    result.write_bytes(
        b"\xef\xbb\xbfAPI Name,Forward Test Success,Backward Test Success,Message\r\n"
        b"Tensor.add.3,SKIP,,by msprobe\r\n"
    )
    report = run(dump, tmp_path, cluster_address, 0, resume_csv=result)
    rows = report.results.set_index("API Name")
    assert list(rows.index) == [f"Tensor.add.{number}" for number in range(5)]
    assert rows.loc["Tensor.add.3", "Message"] == "by msprobe"
    assert list(rows["Forward Test Success"]).count("pass") == 4


def test_a_result_csv_of_another_dump_with_the_same_names_is_refused(
    tmp_path: Path, cluster_address: str, finished: tuple[Path, RunFiles]
) -> None:
    dump, files = finished
    other = tmp_path / "other.json"
    other.write_text(dump.read_text() + " ")
    before = files.result.read_bytes(), files.details.read_bytes()
    with pytest.raises(ResumeError, match="of another dump"):
        run(other, tmp_path, cluster_address, resume_csv=files.result)
    assert (files.result.read_bytes(), files.details.read_bytes()) == before


def test_another_seed_is_refused_for_a_resumed_run(
    tmp_path: Path, cluster_address: str, finished: tuple[Path, RunFiles]
) -> None:
    dump, files = finished
    with pytest.raises(ResumeError, match="seed 0, not 1"):
        run(dump, tmp_path, cluster_address, resume_csv=files.result, seed=1)


def test_a_device_that_is_not_there_is_an_error_that_lists_what_is(
    tmp_path: Path, cluster_address: str
) -> None:
    dump = write_dump(tmp_path / "a.json", additions(3))
    with pytest.raises(DeviceError, match=r"-d 5: this machine .* has no gpu"):
        run(dump, tmp_path, cluster_address, 5, device_type="gpu")
    assert list(tmp_path.glob("*.csv")) == []


def test_of_calls_that_are_alike_one_is_checked_where_that_is_asked_for(
    tmp_path: Path, cluster_address: str
) -> None:
    dump = write_dump(tmp_path / "dump.json", additions(4))
    report = run(dump, tmp_path / "filtered", cluster_address, filter_alike=True)
    rows = report.results.set_index("API Name")
    assert list(rows["Forward Test Success"]) == ["pass", "SKIP", "SKIP", "SKIP"]
    assert "Tensor.add.0" in rows.loc["Tensor.add.3", "Message"]
