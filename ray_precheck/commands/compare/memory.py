"""Keeping Python's collector of cycles away from the captures of a comparison.

A capture of 100,000 calls is millions of objects that stay until the comparison ends and have no cycles. The
collector looks through all of them again and again, and in a fork it copies their pages by that. Called by
the session.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Make many objects that stay without a look for cycles among them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def out_of_collector() -> Iterator[None]:
    """Leave out of the collector what there is now, until the end; garbage that is made meanwhile is
    collected. Where the caller has taken objects out of it, nothing is changed."""
    is_ours = not gc.get_freeze_count()
    if is_ours:
        gc.freeze()
    try:
        yield
    finally:
        if is_ours:
            gc.unfreeze()
