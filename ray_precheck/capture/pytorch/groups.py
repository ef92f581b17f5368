"""Groups of processes and what is done in them, as JSON in msprobe's form.

Comes in: arguments of collectives. Goes out: their JSON. Called by `elements` and `collectives`.
"""

import zlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as distributed

from ray_precheck.capture.writing.text import mapping, quoted


def group_text(group: Any) -> str:
    """Return a process group as JSON, as msprobe has it: its ranks, and CRC-32 of their list."""
    try:
        ranks = distributed.get_process_group_ranks(group)
    except (ValueError, RuntimeError, KeyError):  # this process is not in it, or it is destroyed
        return '{"type": "torch.ProcessGroup"}'
    identity = zlib.crc32(str(ranks).encode())
    return f'{{"type": "torch.ProcessGroup", "group_ranks": {ranks}, "group_id": "{identity:08x}"}}'


def reduce_op_text(operation: Any) -> str:
    """Return the operation of a reduction as JSON."""
    return f'{{"type": "torch.distributed.ReduceOp", "value": {quoted(str(operation))}}}'


def p2p_text(operation: Any, tensor_text: Callable[[torch.Tensor], str]) -> str:
    """Return one entry of a batch of sends and receives as JSON."""
    return mapping(
        [
            ("class_type", '"torch.distributed.P2POp"'),
            ("tensor", tensor_text(operation.tensor)),
            ("op", quoted(operation.op.__name__)),
            ("peer", str(operation.peer)),
            ("tag", str(operation.tag)),
            ("group", group_text(operation.group or distributed.group.WORLD)),
        ]
    )


def written(value: Any, tensor_text: Callable[[torch.Tensor], str]) -> str | None:
    """Return an argument that only collectives have as JSON, None for any other value."""
    if not distributed.is_available():
        return None
    if isinstance(value, distributed.ProcessGroup):
        return group_text(value)
    if isinstance(value, distributed.ReduceOp | distributed.ReduceOp.RedOpType):
        return reduce_op_text(value)
    if isinstance(value, distributed.P2POp):
        return p2p_text(value, tensor_text)
    return None
