"""Loans: the bench workers of a machine read the memory of a device's worker, without a copy.

Comes in: `Sealed`, with the descriptor of its memory in the device's worker. Goes out: a `Loan`,
text and numbers, by which a bench's worker opens the same memory. Called by the worker actors. A
loan ends when the lender closes its descriptor; a process that has opened the memory before keeps
it.
"""

import contextlib
import os
import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from ray_precheck.runtime.tensors.shared_arrays import SharedArrays
from ray_precheck.runtime.workers.messages import Sealed

# Descriptors of other processes are opened through /proc (proc_pid_fd(5)).
CAN_LEND = sys.platform == "linux" and hasattr(os, "memfd_create")


@dataclass(frozen=True, slots=True)
class Loan:
    """Memory that the process `pid` has under the descriptor `handle`.

    `identity` are the device and inode of that memory, because process ids and descriptors are used
    again and differ between containers.
    """

    data: bytes
    lengths: tuple[int, ...]
    pid: int
    handle: int
    identity: tuple[int, int]


Lent = Sealed | Loan


def allow_descriptors() -> None:
    """Let this process have as many descriptors as it may: each record that is lent takes one."""
    if CAN_LEND:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def lend(sealed: Sealed) -> Lent:
    """Return the loan by which processes of this machine open a sealed object; the caller keeps the
    object meanwhile."""
    shared = sealed.shared
    if shared is None:
        return sealed
    return Loan(sealed.data, shared.lengths, os.getpid(), shared.handle, _identity(shared.handle))


def borrow(parcel: Mapping[int, Lent]) -> dict[int, Sealed] | None:
    """Open the loans of a parcel; return their contents by the index of the record.

    None if a memory cannot be opened: the lender is gone, runs in another container, or /proc refuses
    this user.
    """
    borrowed: dict[int, Sealed] = {}
    with contextlib.suppress(OSError):
        for index, lent in parcel.items():
            borrowed[index] = lent if isinstance(lent, Sealed) else _borrowed(lent)
    return borrowed if len(borrowed) == len(parcel) else None


def _borrowed(loan: Loan) -> Sealed:
    path = f"/proc/{loan.pid}/fd/{loan.handle}"
    # Looked at first: a descriptor that stands for another file by now could block when it is
    # opened, or have effects.
    _require_same(loan, _identity(path))
    shared = SharedArrays(os.open(path, os.O_RDWR | os.O_CLOEXEC), loan.lengths)
    _require_same(loan, _identity(shared.handle))
    return Sealed(loan.data, shared=shared)


def _require_same(loan: Loan, found: tuple[int, int]) -> None:
    if found != loan.identity:
        raise FileNotFoundError(f"process {loan.pid} has other memory there by now")


def _identity(file: str | int) -> tuple[int, int]:
    status = os.stat(file)
    return status.st_dev, status.st_ino
