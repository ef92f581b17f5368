"""The files of captured tensors.

Comes in: a tensor and the name of its place. Goes out: a `.pt` file that `torch.load(weights_only=True)`
reads. Called for each tensor of a record where the task is `tensor`.

The same tensor in several records is written once; its other names are links to that file.
"""

import os
from collections.abc import Callable
from pathlib import Path

import torch

from ray_precheck.capture.pytorch.tensors import archive
from ray_precheck.capture.pytorch.tensors.glimpse import Glimpse, glimpse_of
from ray_precheck.capture.pytorch.tensors.seen import SeenTensors


class CapturedFiles:
    """Writes tensors into a folder."""

    def __init__(
        self, folder: Path, glimpse: Callable[[torch.Tensor], Glimpse] = glimpse_of
    ) -> None:
        self._folder = folder
        self._name = ""
        self.seen = SeenTensors(self._write, ordered=True, glimpse=glimpse)
        self.written_bytes = 0
        folder.mkdir(parents=True, exist_ok=True)

    def save(self, tensor: torch.Tensor, name: str) -> str:
        """Write a tensor under a name, and return the name of its file."""
        name = f"{name}.pt"
        self._name = name
        first = self.seen.of(tensor)
        if first != name:
            self._link(first, name, tensor)
        return name

    def _link(self, first: str, name: str, tensor: torch.Tensor) -> None:
        try:
            self._new(name, lambda target: os.link(f"{self._folder}/{first}", target))
        except OSError:  # a file system without links, or too many of them
            self._name = name
            self._write(tensor)

    def _write(self, tensor: torch.Tensor) -> str:
        """Write the values alone: a view does not bring the storage that it is a view of."""
        values = tensor.detach()
        if values.layout is not torch.strided:
            return self._write_whole(values)
        own = values.untyped_storage().nbytes() == values.numel() * values.element_size()
        if values.is_conj() or values.is_neg():
            values = values.resolve_conj().resolve_neg()
        if not (own and values.is_contiguous()):
            values = values.contiguous().clone()
        if archive.is_plain(values):
            self._new(self._name, lambda target: archive.save(values, target))
        else:
            self._write_whole(values)
        self.written_bytes += values.numel() * values.element_size()
        return self._name

    def _write_whole(self, values: torch.Tensor) -> str:
        """Write a tensor of a layout or a dtype that only torch itself writes."""
        path = self._folder / self._name
        path.unlink(missing_ok=True)
        torch.save(values, path)
        if values.layout is not torch.strided:
            self.written_bytes += path.stat().st_size
        return self._name

    def _new(self, name: str, make: Callable[[str], None]) -> None:
        """Let `make` make a file, in the place of one that an earlier capture has left."""
        target = f"{self._folder}/{name}"
        try:
            make(target)
        except FileExistsError:
            os.unlink(target)
            make(target)
