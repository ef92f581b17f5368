"""Memory that one worker lends to another: got at, or refused; never something else."""

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ray_precheck.runtime.tensors import loans
from ray_precheck.runtime.tensors.loans import Loan, borrow, lend
from ray_precheck.runtime.tensors.shared_pool import SharedPool
from ray_precheck.runtime.workers.messages import Sealed, seal

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(not loans.CAN_LEND, reason="only Linux has memfd and /proc"),
]

# Lends an array, and lives until its standard input is closed.
LENDER = """
import pickle, sys
import numpy as np
from ray_precheck.runtime.tensors.loans import lend
from ray_precheck.runtime.workers.messages import seal
from ray_precheck.runtime.tensors.shared_pool import SharedPool
sealed = seal({"a": np.arange(1000.0), "b": "text"}, SharedPool())
sys.stdout.buffer.write(pickle.dumps(lend(sealed)))
sys.stdout.buffer.flush()
sys.stdin.read()
"""
UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc")


def start(*before: str) -> "subprocess.Popen[bytes]":
    command = [*before, sys.executable, "-c", LENDER]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def loan_of(process: "subprocess.Popen[bytes]") -> Loan:
    assert process.stdout is not None
    loan = pickle.load(process.stdout)
    process.stdout.close()
    assert isinstance(loan, Loan)
    return loan


def end(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait()


@pytest.fixture(name="lender")
def start_lender() -> Iterator["subprocess.Popen[bytes]"]:
    process = start()
    yield process
    end(process)


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def opened(sealed: Sealed) -> Any:
    content = sealed.open()
    return content["a"].tolist(), content["b"]


ALL = (np.arange(1000.0).tolist(), "text")


def test_what_another_process_lends_is_there(lender: "subprocess.Popen[bytes]") -> None:
    loan = loan_of(lender)
    borrowed = borrow({3: loan})
    assert borrowed is not None
    assert opened(borrowed[3]) == ALL
    # The memory itself, not a copy.
    shared = borrowed[3].shared
    assert shared is not None
    assert os.fstat(shared.handle).st_ino == loan.identity[1]


def test_what_is_borrowed_stays_when_the_lender_has_gone(
    lender: "subprocess.Popen[bytes]",
) -> None:
    borrowed = borrow({3: loan_of(lender)})
    end(lender)
    assert borrowed is not None
    assert opened(borrowed[3]) == ALL


def test_a_lender_that_has_gone_lends_nothing(lender: "subprocess.Popen[bytes]") -> None:
    loan = loan_of(lender)
    end(lender)
    assert borrow({3: loan}) is None


def test_a_descriptor_that_is_something_else_by_now_is_not_opened() -> None:
    sealed, other = (seal(np.arange(10.0), SharedPool()) for _ in range(2))
    loan = lend(sealed)
    assert isinstance(loan, Loan)
    reading, writing = os.pipe()
    try:
        # What waits to be read or written must not be opened, and other memory is not what was lent.
        assert other.shared is not None
        for handle in (reading, other.shared.handle):
            assert borrow({3: replace(loan, handle=handle)}) is None
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode != 0,
    reason="this user may not make process namespaces",
)
def test_a_lender_in_another_container_is_no_lender() -> None:
    process = start(*UNSHARE)
    try:
        loan = loan_of(process)
        assert loan.pid == 1  # as it is called in there; here that is another one
        assert borrow({3: loan}) is None
    finally:
        end(process)


def test_a_descriptor_that_may_not_be_opened_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    sealed = seal(np.arange(10.0), SharedPool())
    monkeypatch.setattr(os, "open", refuse)
    assert borrow({3: lend(sealed)}) is None


def test_of_a_parcel_that_is_not_all_there_nothing_stays_open() -> None:
    sealed = seal(np.arange(10.0), SharedPool())
    loan = lend(sealed)
    assert isinstance(loan, Loan)
    before = open_descriptors()
    assert borrow({1: loan, 2: replace(loan, handle=10**6)}) is None
    assert open_descriptors() == before


def test_what_is_not_in_shared_memory_goes_as_it_is() -> None:
    sealed = seal(np.arange(10.0))
    assert lend(sealed) is sealed
    borrowed = borrow({1: sealed})
    assert borrowed is not None
    assert borrowed[1] is sealed
    assert lend(seal("no arrays", SharedPool())).data == seal("no arrays").data


def test_an_empty_parcel_is_no_refusal() -> None:
    assert borrow({}) == {}
