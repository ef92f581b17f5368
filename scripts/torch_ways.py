"""Other ways in which torch computes the same thing on a CPU, for as long as a block takes."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def onednn(enabled: bool) -> Iterator[None]:
    """Compute with oneDNN's kernels, or without them."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = enabled  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before
