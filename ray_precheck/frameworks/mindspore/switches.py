"""The switches of MindSpore between fast kernels and slow, plain ones.

Goes out: `MINDSPORE_SWITCHES`, loaded through the descriptor. HF32 has no switch here: a process can set it
once only, and the backend has set it. `jit_level` changes graphs alone, and calls run in PyNative mode.
"""

import mindspore as ms

from ray_precheck.frameworks.switches import KernelSwitch


def _read() -> str:
    return str(ms.get_context("deterministic"))


def _write(value: str) -> None:
    # Its newer name, a function of its own, can be called once only in a process.
    ms.set_context(deterministic=value)


MINDSPORE_SWITCHES = (
    KernelSwitch(
        name="deterministic",
        title="kernels whose order of operations is free",
        advice='mindspore.set_context(deterministic="ON")',
        read=_read,
        write=_write,
        plain="ON",
    ),
)
