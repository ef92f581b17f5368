"""precision_tool's configurations for scripts of TensorFlow on an NPU.

    import ray_precheck.tools.precision_tool.tf_config as CONFIG
    config = CONFIG.session_dump_config(config)                   # tf.Session(config=config)
    run = NPURunConfig(dump_config=CONFIG.estimator_dump_config(), session_config=config)
    session = CONFIG.sess_dump(session)                           # on the CPU

What is dumped is told by the environment that the words `npu_dump` and `npu_overflow` set, and by
`precision_tool/config.py`. TensorFlow and npu_bridge are imported when a function is called.
"""

import os
from pathlib import Path
from typing import Any

from ray_precheck.errors import UsageError
from ray_precheck.tools.precision_tool.settings import ToolSettings, read_settings

# The folders of the guide, below DATA_ROOT_DIR, and what precision_tool's words set for a script.
NPU, OVERFLOW, GRAPHS = "dump/npu", "dump/overflow", "graph/all"
DUMP_FLAG, OVERFLOW_FLAG = "PRECISION_TOOL_DUMP", "PRECISION_TOOL_OVERFLOW"
# precision_tool's config.py: 4 keeps the fused operators as they are compiled.
OP_DEBUG_LEVEL = 4
_OPTIMIZER = "NpuOptimizer"
_DEBUG_FOLDER = "tf/tf_debug"


def estimator_dump_config() -> Any:
    """Return the `DumpConfig` of npu_bridge for `NPURunConfig(dump_config=...)`.

    Raises:
        UsageError: npu_bridge is not installed, which comes with CANN and needs an NPU.
    """
    try:
        from npu_bridge.npu_init import DumpConfig
    except ImportError:
        raise UsageError(
            "estimator_dump_config needs npu_bridge, which comes with CANN's TensorFlow adapter for"
            " NPUs; on a CPU use sess_dump, or precision_tool's word tf_dump"
        ) from None
    settings = read_settings()
    chosen = _chosen(settings)
    return DumpConfig(**chosen) if chosen else DumpConfig()


def session_dump_config(session_config: Any = None) -> Any:
    """Return a `ConfigProto` for `tf.compat.v1.Session` with the NPU's optimizer in it; what it has already
    is kept.

    Raises:
        UsageError: TensorFlow is not installed.
    """
    try:
        from tensorflow.core.protobuf import config_pb2
        from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
    except ImportError:
        raise UsageError("session_dump_config needs TensorFlow: pip install tensorflow") from None
    config = config_pb2.ConfigProto() if session_config is None else session_config
    rewriting = config.graph_options.rewrite_options
    own = [each for each in rewriting.custom_optimizers if each.name == _OPTIMIZER]
    optimizer = own[0] if own else rewriting.custom_optimizers.add(name=_OPTIMIZER)
    parameters = optimizer.parameter_map
    parameters["use_off_line"].b = True
    chosen = _chosen(read_settings())
    # Of a session it is the mode of what is detected that has a name of its own.
    if chosen.get("enable_dump_debug"):
        chosen["dump_debug_mode"] = chosen.pop("dump_mode")
    for name, value in chosen.items():
        if isinstance(value, bool):
            parameters[name].b = value
        elif isinstance(value, int):
            parameters[name].i = value
        else:
            parameters[name].s = value.encode()
    rewriting.remapping = RewriterConfig.OFF
    return config


def sess_dump(session: Any) -> Any:
    """Return a session of v1 whose runs are dumped on the CPU, into tf/tf_debug of DATA_ROOT_DIR.

    Raises:
        UsageError: TensorFlow is not installed.
    """
    return _debugging().DumpingDebugWrapperSession(session, _debug_folder())


def estimator_dump() -> Any:
    """Return a hook of v1 that dumps the runs of an estimator.

    Raises:
        UsageError: TensorFlow is not installed.
    """
    return _debugging().DumpingDebugHook(_debug_folder())


def graph_variables(settings: ToolSettings) -> dict[str, str]:
    """Return the variables of the environment by which Ascend's compiler writes its graphs."""
    return {
        "DUMP_GE_GRAPH": "2",
        "DUMP_GRAPH_LEVEL": "3",
        "DUMP_GRAPH_PATH": str(Path(settings.data_root_dir, GRAPHS)),
    }


def _debugging() -> Any:
    try:
        from tensorflow.python import debug
    except ImportError:
        raise UsageError("a dump on the CPU needs TensorFlow: pip install tensorflow") from None
    return debug


def _debug_folder() -> str:
    folder = Path(read_settings().data_root_dir, _DEBUG_FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)


def _chosen(settings: ToolSettings) -> dict[str, Any]:
    """Return the parameters of what the environment asks for; {} where it asks for nothing."""
    os.environ.update(graph_variables(settings))
    is_overflow = os.environ.get(OVERFLOW_FLAG) == "True"
    if not is_overflow and os.environ.get(DUMP_FLAG) != "True":
        return {}
    folder = Path(settings.data_root_dir, OVERFLOW if is_overflow else NPU)
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "enable_dump_debug" if is_overflow else "enable_dump": True,
        "dump_path": str(folder),
        "dump_step": settings.tf_dump_step,
        "dump_mode": "all",
        "op_debug_level": OP_DEBUG_LEVEL,
        "fusion_switch_file": settings.fusion_switch_file,
    }
