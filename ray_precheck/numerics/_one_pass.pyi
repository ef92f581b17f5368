"""What `_one_pass.c`, `_texts.c` and `_x86.c` give; `one_pass` says what the numbers mean."""

from collections.abc import Callable, Sequence
from typing import Any

def sums(address: int, count: int, kind: int, /) -> tuple[float, float, float, float]: ...
def everything(
    address: int, count: int, kind: int, buckets: int, /
) -> tuple[float, float, float, float, int, int, int, int, int, float]: ...
def sketch(address: int, count: int, kind: int, start: int, buckets: int, /) -> None: ...
def crc32(address: int, size: int, /) -> int: ...

class Texts:
    """Writes tensors of `types`; `capture.pytorch.tensors.many` has the functions that it gets."""

    def __new__(
        cls,
        types: tuple[type, type],
        kind_of: Callable[[Any], tuple[bytes, bytes, int, int, int, int] | None],
        stride_text: Callable[[tuple[int, ...], tuple[int, ...]], bytes | None],
        dumps: Callable[[list[float]], bytes],
        words: Callable[[float, float, float, float], str],
        labels: tuple[bytes, bytes, bytes, bytes],
        small_bytes: int,
        look: Callable[[Any], str] | None,
        /,
    ) -> Texts: ...
    def fields(self, tensor: Any, met: Callable[[Any], object] | None, /) -> str: ...
    def fields_of_many(self, values: Sequence[Any], /) -> list[str]: ...
    def forget(self, tensor: Any, /) -> None: ...
    def forget_all(self) -> None: ...
