"""Whether this thread's arithmetic flushes denormal numbers to zero.

Called by the MindSpore backend on the CPU. torch has the portable switch of this processor flag. A module of
its own, because MSAdapter's torch, which lacks much that `pytorch.run` needs, may stand behind it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Flush denormal numbers inside of the block, and not after it, on processors that can.

    Some of MindSpore's operators (Tensor.norm) leave the calling thread flushing, which would reach
    generation and bench. Its own threads flush them while the calling thread does not, and for the
    first few launches of an operator MindSpore tries out which of the threads to use: without this,
    softmax gives 1.9e-38 or 0 depending on the calls before.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
