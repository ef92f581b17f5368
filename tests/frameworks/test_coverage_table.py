"""The table of what can be checked, and that the docs have it as it is."""

from pathlib import Path

import pytest

from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.mindspore.bench.mapping import resolve_mindspore
from ray_precheck.frameworks.pytorch.names import resolve_torch
from ray_precheck.schema.record import ApiName
from scripts.coverage import documented
from scripts.coverage import main as coverage_script
from scripts.coverage.status import Kind

pytest.importorskip("mindspore")
pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def table() -> coverage_script.Table:
    return coverage_script.coverage()


def test_the_docs_say_what_the_installed_frameworks_have(table: coverage_script.Table) -> None:
    """With other versions than those of the docs: that nothing contradicts them."""
    assert coverage_script.is_current(coverage_script.rendered(table), table)


def test_docs_of_other_versions_are_compared_name_by_name(
    table: coverage_script.Table,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = coverage_script.rendered(table)
    assert documented.documented_versions(text) == documented.installed_versions()
    other = text.replace(
        documented.told(documented.installed_versions()), "torch 2.1 and MindSpore 2.4"
    )
    monkeypatch.setattr(coverage_script, "DOCS", tmp_path / "COVERAGE.md")
    # Shares are of the names of a version; of all names some are of that version alone.
    coverage_script.DOCS.write_text(other.replace("| torch |", "| torch | 7"), encoding="utf-8")
    assert coverage_script.is_current(text, table)
    assert "COVERAGE.md holds for torch 2.1 and MindSpore 2.4; here is" in capsys.readouterr().err
    listed = other.replace("\ncudnn_affine_grid", "\nadd cudnn_affine_grid")
    coverage_script.DOCS.write_text(listed, encoding="utf-8")
    assert not coverage_script.is_current(text, table)
    assert "torch: add has a bench here, and none there" in capsys.readouterr().err
    alone = other[: other.index("\n## torch.Tensor")]
    coverage_script.DOCS.write_text(alone, encoding="utf-8")
    assert not coverage_script.is_current(text, table)
    assert "cannot be checked here, and can there" in capsys.readouterr().err


def test_stale_docs_are_noticed(
    table: coverage_script.Table, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = coverage_script.rendered(table)
    monkeypatch.setattr(coverage_script, "DOCS", tmp_path / "COVERAGE.md")
    assert not coverage_script.is_current(text, table)
    coverage_script.DOCS.write_text(text.replace("100.0%", "99.0%"), encoding="utf-8")
    assert not coverage_script.is_current(text, table)
    coverage_script.DOCS.write_text(text, encoding="utf-8")
    assert coverage_script.is_current(text, table)


def test_98_percent_of_what_is_not_excluded_has_a_bench_or_statistics(
    table: coverage_script.Table,
) -> None:
    for namespace, found in table.items():
        open_ones = [status for status in found if status.kind is not Kind.EXCLUDED]
        covered = sum(status.is_covered for status in open_ones)
        # Of mindspore.ops only what models use is mapped.
        wanted = 0.94 if namespace.title == "mindspore.ops" else 0.98
        assert covered / len(open_ones) >= wanted, namespace.title


def test_a_name_that_is_not_covered_has_a_reason(table: coverage_script.Table) -> None:
    for found in table.values():
        assert all(status.reason for status in found if not status.is_covered)


def test_every_documented_function_of_mint_counts(table: coverage_script.Table) -> None:
    from mindspore import mint

    for title, root in (("mint", mint), ("mint.nn.functional", mint.nn.functional)):
        listed = next(
            {s.name for s in found} for ns, found in table.items() if ns.title.endswith(title)
        )
        functions = {n for n in root.__all__ if callable(getattr(root, n, None))}
        documented = {n for n in functions if not isinstance(getattr(root, n), type)}
        assert documented <= listed


@pytest.mark.parametrize(
    "name",
    ["Torch.relu_", "Torch.index_put_", "Torch.embedding_renorm_", "Functional.elu_"],
)
def test_a_function_that_changes_its_argument_may_be_called(name: str) -> None:
    prefix, _, api = name.partition(".")
    assert callable(resolve_torch(ApiName(prefix, api, 0)))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Torch.resize_as_sparse_", "touches more"),
        ("Torch.set_rng_state", "touches more"),
        ("Torch.cudnn_convolution", "kernel of one library"),
        ("Tensor.__iter__", "iterator"),
        ("Torch.cond", "touches more"),
        ("Torch.save_", "has no torch.save_, which would compute the bench"),
    ],
)
def test_what_no_bench_can_judge_is_refused_with_the_reason(name: str, reason: str) -> None:
    prefix, _, api = name.partition(".")
    with pytest.raises(NotCheckable, match=reason):
        resolve_torch(ApiName(prefix, api, 0))


def test_the_condition_number_is_no_control_flow() -> None:
    assert callable(resolve_torch(ApiName("Torch", "linalg.cond", 0)))


@pytest.mark.parametrize("move", ["cuda", "npu", "xpu"])
def test_a_move_to_an_accelerator_stays_on_the_device_under_test(move: str) -> None:
    import torch

    tensor = torch.ones(3)
    moved = resolve_torch(ApiName("Tensor", move, 0))(tensor, non_blocking=True)
    assert torch.equal(moved, tensor)
    assert moved.device == tensor.device
    assert moved is not tensor


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Functional.all_reduce", "needs its other ranks"),
        ("Functional.tuple_getitem", "part of MindSpore's compiler"),
        ("Functional.csr_mm", "parts of a sparse tensor"),
        ("Functional.iou", "no operator of torch is known"),
    ],
)
def test_a_name_of_mindspore_without_a_bench_says_why(name: str, reason: str) -> None:
    prefix, _, api = name.partition(".")
    with pytest.raises(NotCheckable, match=reason):
        resolve_mindspore(ApiName(prefix, api, 0))
