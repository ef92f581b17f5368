"""Which versions the tests' tables are kept for, and what another version of MindSpore lacks."""

from collections.abc import Collection
from typing import TypeVar

import pytest

from ray_precheck.schema.result import TaskResult
from scripts.coverage.documented import documented_versions, installed_versions
from scripts.coverage.main import DOCS

Names = TypeVar("Names", bound=Collection[str])
DOCUMENTED = documented_versions(DOCS.read_text("utf-8"))


def is_documented(package: str) -> bool:
    """Whether the version of torch or MindSpore that is installed is the one of COVERAGE.md."""
    return installed_versions().get(package) == DOCUMENTED[package]


def lacking(error: Exception) -> str:
    """Return in a sentence what another MindSpore than that of COVERAGE.md lacks, "" for other errors.

    A kernel for the CPU, as the package knows one that is missing, or a name.
    """
    import mindspore

    from ray_precheck.frameworks.mindspore.backend import _NO_KERNEL

    is_missing = isinstance(error, AttributeError) or any(text in str(error) for text in _NO_KERNEL)
    if is_documented("mindspore") or not is_missing:
        return ""
    return f"MindSpore {mindspore.__version__} lacks it: {str(error).strip().splitlines()[0]}"


def require_kernel(result: TaskResult) -> None:
    """Skip a test where another MindSpore than that of COVERAGE.md has no kernel for a call of it."""
    import mindspore

    if "the CPU has no kernel for it" in result.message and not is_documented("mindspore"):
        pytest.skip(f"MindSpore {mindspore.__version__}: {result.name}: {result.message[:120]}")


def unexpected(found: Names, findings: Collection[str], package: str) -> Names:
    """Return names that are found; with another version, up to two of a hundred are a skip."""
    here = installed_versions()[package]
    if found and not is_documented(package) and len(found) <= 0.02 * len(findings):
        pytest.skip(
            f"kept for {package} {DOCUMENTED[package]}; in {here}: {', '.join(sorted(found))}"
        )
    return found
