"""The private parts of Ray and of the frameworks that this package uses, all of them.

Private parts come and go between versions. Called by the modules that use one: `find` gives it, or None on
a version that lacks it, and then that module does what `otherwise` says. Where a part is missing a line
on stderr says so once in each process, under `--debug` only.
"""

import importlib
import os
import sys
from dataclasses import dataclass
from typing import Any

from ray_precheck.errors import NotCheckable

# Set for the time of a run by `--debug` in the driver and, by their workers, in check processes.
DEBUG = "RAY_PRECHECK_DEBUG"
# Which difference of Python's versions Ray refuses: "patch" (its default) or "minor" (ours).
MATCH_LEVEL = "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL"


@dataclass(frozen=True, slots=True)
class PrivatePart:
    """A part without a contract.

    `places` are `module:name.name`, of which the first that exists is taken, the newest version's first.
    `use` and `otherwise` say what it is for and what is done where no place has it.
    """

    places: tuple[str, ...]
    use: str
    otherwise: str


NODE = PrivatePart(
    ("ray._private:node",),
    "starts Ray's head without an autoscaler, a dashboard and a reader of logs",
    "Ray starts all of them, which takes a second more",
)
NODE_TABLE = PrivatePart(
    ("ray._private.state:GlobalState",),
    "looks every 20 ms whether the started node is there",
    "Ray looks by itself, once a second",
)
CLIENT_OPTIONS = PrivatePart(
    ("ray._private.services:_get_gcs_client_options",), NODE_TABLE.use, NODE_TABLE.otherwise
)
JOB_PATH = PrivatePart(
    ("ray.job_config:JobConfig",),
    "lets Ray's workers import nothing of the working directory (`_py_driver_sys_path`)",
    "the workers look for modules in the folder in which the command was started, too",
)
TOKEN_LOADER = PrivatePart(
    ("ray._raylet:AuthenticationTokenLoader",),
    "makes Ray read its token again for a second cluster in one process",
    "Ray keeps what it has read; a Ray that knows no token listens on loopback alone",
)
MINDSPORE_EXECUTOR = PrivatePart(
    ("mindspore.graph.api:_pynative_executor", "mindspore.common.api:_pynative_executor"),
    "ends MindSpore's recording for gradients after an operator raised",
    "the check process is started anew after an operator raised in a backward check",
)
MINDSPORE_RECORDER = PrivatePart(
    MINDSPORE_EXECUTOR.places,
    "runs a function once for its outputs and its gradients, on a MindSpore whose vjp runs it twice",
    "it runs twice, and the gradients of random functions are not checked",
)
DECOMPOSITIONS = PrivatePart(
    ("torch._decomp:decomposition_table",),
    "takes fused operators apart for the composed peer of --standard auto",
    "a fused operator is one step of that peer",
)
DISPATCH_MODE = PrivatePart(
    ("torch.utils._python_dispatch:TorchDispatchMode",),
    "rounds each step of the composed peer of --standard auto",
    "calls are judged without that peer",
)
EVAL_FRAME = PrivatePart(
    ("torch._dynamo.eval_frame:set_eval_frame",),
    "sees where a captured script enters and leaves a compiled function",
    "a script that compiles functions is not captured, and is told how to switch that off",
)
COMPILER = PrivatePart(
    ("torch._dynamo:config",),
    "tells whether a process has loaded torch's compiler, whose switch takes a second where it has not",
    "the compiler counts as not loaded, and compiled code is not switched off",
)
FUNCTION_MODE = PrivatePart(
    ("torch.overrides:_get_current_function_mode",),
    "sees whether a mode of the script lies above that of the capture",
    "the capture's mode is taken to be the uppermost",
)
NO_FUNCTION_MODE = PrivatePart(
    ("torch._C:DisableTorchFunction",),
    "keeps what a capture asks of tensors from the modes and subclasses of the script, and its own",
    "each such question passes through them, which takes a microsecond",
)
FOREACH_NORM = PrivatePart(
    ("torch:_foreach_norm",),
    "finds the norms of all gradients of a step in one pass",
    "they are found one by one",
)
FOREACH_NORM_SCALAR = PrivatePart(
    ("torch:ops.aten._foreach_norm.Scalar",),
    "says whether that pass can add up half types in float32",
    "half types are widened before it",
)
DEFAULT_DEVICE = PrivatePart(
    ("torch:_GLOBAL_DEVICE_CONTEXT",),
    "puts the capture's mode above that of torch.set_default_device, which has to be the lowest",
    "a script that sets a default device before a captured step cannot take it back within it",
)
TRANSFORM = PrivatePart(
    ("torch._C._functorch:peek_interpreter_stack",),
    "sees whether a transform of torch.func wraps what a capture computes within it",
    "a capture of a script that uses torch.func may end with a sentence",
)
NO_TRANSFORMS = PrivatePart(
    ("torch._C:_DisableFuncTorch",),
    "keeps what a capture computes from the transforms of torch.func",
    TRANSFORM.otherwise,
)
DISPATCH_MODES = PrivatePart(
    ("torch._C:_len_torch_dispatch_stack",),
    "sees whether a mode of the script would see what a capture computes",
    "a mode that counts operators counts those of the capture, too",
)
NO_DISPATCH_MODES = PrivatePart(
    ("torch.utils._python_dispatch:_disable_current_modes",),
    "keeps what a capture computes from the modes of the script",
    DISPATCH_MODES.otherwise,
)
TRACE = PrivatePart(
    ("torch._C:_get_tracing_state",),
    "sees whether torch.jit.trace would take what a capture computes for a part of the model",
    "a script that calls torch.jit.trace may not find its traces equal",
)
SET_TRACE = PrivatePart(
    ("torch._C:_set_tracing_state",),
    "keeps what a capture computes out of the graphs of torch.jit.trace",
    TRACE.otherwise,
)
GRAPH_TASK = PrivatePart(
    ("torch._C:_current_graph_task_id",),
    "tells calls that a backward pass recomputes from those of the forward pass",
    "a recomputed call does not name the first one",
)
SCRIPT_FUNCTION = PrivatePart(
    ("torch._C:ScriptFunction",),
    "names calls of TorchScript functions, which run without Python",
    "what such a function gives is named as a tensor that no recorded call made",
)
SCRIPT_METHOD = PrivatePart(
    ("torch._C:ScriptMethod",),
    "names calls of TorchScript modules, which run without Python",
    "what such a module gives is named as a tensor that no recorded call made",
)
LOADER = PrivatePart(
    ("torch.utils.data.dataloader:_BaseDataLoaderIter",),
    "knows the tensors of a batch, which come from other processes",
    "they may be named as tensors that no recorded call made",
)
RECOMPUTATION = PrivatePart(
    ("torch.utils.checkpoint:_recomputation_hook",),
    "sees the calls of a checkpointed region when they are computed again",
    "of checkpoints, those with use_reentrant=True alone have their second calls recorded",
)
AUTOGRAD_ENGINE = PrivatePart(
    ("torch.autograd:Variable._execution_engine",),
    "says when a backward pass ends, for calls whose outputs are not all used, and for DDP's reductions",
    "the hooks leave out the gradients of such a call, and DDP's reductions have no records",
)
MINDSPORE_JIT = PrivatePart(
    ("mindspore.graph.api:_JitExecutor", "mindspore.common.api:_JitExecutor"),
    "sees where a captured program enters and leaves a function that ms.jit compiled",
    "compiled functions have no record, and calls in them are recorded while they are compiled",
)
MINDSPORE_JIT_BYTECODE = PrivatePart(
    (
        "mindspore.graph._utils.pijit_context:PIJitCaptureContext",
        "mindspore.common._pijit_context:PIJitCaptureContext",
    ),
    MINDSPORE_JIT.use,
    MINDSPORE_JIT.otherwise,
)
MINDSPORE_JIT_TRACE = PrivatePart(
    ("mindspore.graph.jit_context:jit_context", "mindspore.common.jit_context:jit_context"),
    "tells whether a captured call is one that ms.jit traces",
    "traced calls are recorded as others are",
)
MINDSPORE_NODE = PrivatePart(
    ("mindspore._c_expression:BackwardNodePy.register_hook",),
    "sees the gradients at the border of each captured call",
    "the gradients that calls and Cells pass on to their inputs are not captured",
)
MINDSPORE_AMP = PrivatePart(
    ("mindspore._c_expression.amp:get_curr_amp_strategy",),
    "tells whether amp casts what a captured call gets",
    "calls are checked with the dtypes that they were given, also where amp cast these",
)
MINDSPORE_SEEDS = PrivatePart(
    ("mindspore.common.seed:_KERNEL_SEED",),
    "puts the seeds of random operators back before each run of a step that is verified",
    "a step with a random operator does not repeat itself, and nothing can be said of it",
)
MINDSPORE_STRIDES = PrivatePart(
    ("mindspore.ops.auto_generate:as_strided",),
    "places the inputs of a call in memory as they lay in the captured program",
    "MindSpore's inputs are contiguous",
)
DDP_BUCKETS = PrivatePart(
    ("torch.distributed:Reducer._get_zeros_like_grad_buckets",),
    "tells which parameters DistributedDataParallel reduces in one bucket",
    "the gradients of such a model have one record together",
)
DDP_FINALIZED = PrivatePart(
    ("torch.distributed:Reducer._check_reducer_finalized",),
    "tells whether DistributedDataParallel has reduced the gradients of a backward pass that ends, of several"
    " nested ones",
    "the end of the first one counts as the end of the reduction",
)
DDP_BROADCAST = PrivatePart(
    ("torch.distributed:_broadcast_coalesced",),
    "sees the buffers and parameters that DistributedDataParallel broadcasts",
    "they have no record",
)
FSDP = PrivatePart(
    (
        "torch.distributed.fsdp._fully_shard:_fsdp_param_group",
        "torch.distributed._composable.fsdp:_fsdp_param_group",
    ),
    "tells which parameters fully_shard gathers or reduces by a collective",
    "the collective has its record without their names",
)
FSDP_HANDLES = PrivatePart(
    ("torch.distributed.fsdp:_flat_param",),
    "tells which parameters FullyShardedDataParallel gathers by a collective",
    FSDP.otherwise,
)
FSDP_REDUCTIONS = PrivatePart(
    ("torch.distributed.fsdp:_runtime_utils",),
    "tells which parameters' gradients FullyShardedDataParallel reduces by a collective",
    FSDP.otherwise,
)
OPERATORS = PrivatePart(
    ("torch._ops:OpOverloadPacket",),
    "sees functional collectives, such as those that move the parts of a DTensor",
    "they have no record",
)
GROUP_NAMES = PrivatePart(
    ("torch.distributed.distributed_c10d:_resolve_process_group",),
    "tells in which group a functional collective ran",
    "its record has no group",
)
DTENSOR_MOVES = PrivatePart(
    ("torch.distributed.tensor:_dispatch",),
    "sees which parts torch moves within a call of a DTensor",
    "such a call is recorded with the parts that it was given",
)
DTENSOR_EXCHANGES = PrivatePart(
    ("torch.distributed:_functional_collectives",),
    "sees whether a call of a DTensor exchanges values in its midst",
    "such a call is checked as if it did not",
)
IS_FUNCTIONAL = PrivatePart(
    ("torch:_is_functional_tensor",),
    "tells tensors of torch.func.functionalize from others",
    "they are recorded without values",
)
FUNCTIONAL_SYNC = PrivatePart(
    ("torch:_sync",), "makes the changes that wait in such a tensor", IS_FUNCTIONAL.otherwise
)
FROM_FUNCTIONAL = PrivatePart(
    ("torch:_from_functional_tensor",), "takes the values of such a tensor", IS_FUNCTIONAL.otherwise
)
QUANTIZED = PrivatePart(
    ("torch:_make_per_tensor_quantized_tensor",),
    "makes a quantized tensor of its whole numbers",
    "calls that get such a tensor are SKIP",
)
QUANTIZED_BY_CHANNEL = PrivatePart(
    ("torch:_make_per_channel_quantized_tensor",), QUANTIZED.use, QUANTIZED.otherwise
)
QUANTIZATION = PrivatePart(
    ("torch:_choose_qparams_per_tensor",),
    "chooses the scale of a dynamic quantization as the operator does",
    "dynamic quantization has no bench",
)
# All of them.
ALL = tuple(part for part in list(globals().values()) if isinstance(part, PrivatePart))

_told: set[PrivatePart] = set()


def find(part: PrivatePart) -> Any | None:
    """Return a private part, None where the installed version lacks it."""
    for place in part.places:
        module, _, path = place.partition(":")
        try:
            found = importlib.import_module(module)
            for name in path.split("."):
                found = getattr(found, name)
        except (ImportError, AttributeError):
            continue
        return found
    if os.environ.get(DEBUG) and part not in _told:
        _told.add(part)
        print(f"ray-precheck: {_missing(part)}", file=sys.stderr)
    return None


def demanded(part: PrivatePart) -> Any:
    """Return a private part without which a call cannot be checked.

    Raises:
        NotCheckable: the installed version lacks it.
    """
    found = find(part)
    if found is None:
        raise NotCheckable(_missing(part))
    return found


def is_loaded(part: PrivatePart) -> bool:
    """Return whether this process has imported a module that has a private part; imports nothing."""
    return any(place.partition(":")[0] in sys.modules for place in part.places)


def _missing(part: PrivatePart) -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    package = part.places[0].partition(":")[0].partition(".")[0]
    try:
        version = version_of(package)
    except PackageNotFoundError:
        version = "(of unknown version)"
    places = " or ".join(place.replace(":", ".") for place in part.places)
    return f"{package} {version} has no {places}, which {part.use}; instead: {part.otherwise}"
