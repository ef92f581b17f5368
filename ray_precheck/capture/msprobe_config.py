"""The configuration of msprobe's PrecisionDebugger, read as settings of a capture.

Comes in: a config.json of msprobe 26.2, and the arguments of its constructor. Goes out: settings, and a
sentence for each value that means nothing here. Called by the debugger.

A key stands at the top, or in the section of its task. Sections of other tasks are not read, as there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_precheck.capture.recording.scope import Scope
from ray_precheck.capture.settings import (
    BY_HAND,
    FOCUS,
    LEVELS,
    RISK_LEVELS,
    STATISTICS,
    STRUCTURE,
    TASKS,
    CaptureSettings,
    TensorSlice,
    capture_settings,
)
from ray_precheck.errors import UsageError
from ray_precheck.foreign import from_json, read_file

DEBUG_LEVEL = "debug"
_DEFAULT_PATH = "./dump_path"
_NAN_CHECK = "nan_check"
_OTHER_TASKS = {
    "acc_check": "it checks a dump: ray-precheck acc_check -api_info DUMP",
    "diff_check": "capture both runs, and compare the dumps afterwards",
    "exception_dump": "it belongs to MindSpore's static graphs on an Ascend device",
}
_SECTIONS = frozenset(
    {*TASKS, _NAN_CHECK, *_OTHER_TASKS, "overflow_check", "free_benchmark", "grad_probe", "run_ut"}
)
_TOP = frozenset(
    "task dump_path rank step level dump_enable extra_info async_dump precision risk_level"
    " custom_op_namespaces load".split()
)
_OF_A_TASK = frozenset(
    "scope list data_mode slice request_id summary_mode tensor_list diff_nums bench_path".split()
)
# Keys that have no meaning here: the value that asks for nothing, and why another one changes nothing.
_WITHOUT_MEANING: Mapping[str, tuple[object, str]] = {
    "async_dump": (False, "records and tensors are always written while the step runs"),
    "precision": ("low", "Mean and Norm of floats are always there, and are summed in float64"),
    "load": (None, "inputs of modules are not replaced by those of a dump"),
    "request_id": (None, "tensors are not cut by requests of a serving engine; give slice"),
    "diff_nums": (None, "it belongs to diff_check; compare two dumps afterwards"),
    "bench_path": (None, "all tensors are saved, and two dumps are compared afterwards"),
}
# Keys of earlier releases, which 26.2 does not read either.
_EARLIER = frozenset("enable_dataloader acl_config seed is_deterministic backward_input".split())
_EARLIER_OF_A_TASK = frozenset(
    "backward_input file_format overflow_nums check_mode error_data_path white_list black_list".split()
)

# What a value must be, and how a sentence says so.
_NUMBERS = (
    lambda given: isinstance(given, list),
    'a list of numbers and ranges, such as [0, "2-5"]',
)
_A_RISK_LEVEL = (
    lambda given: not given or given in RISK_LEVELS,
    f"one of {', '.join(RISK_LEVELS)}",
)


@dataclass(frozen=True, slots=True)
class DebuggerConfig:
    """What a configuration asks for.

    `enabled` is `dump_enable`: None where the file is not looked at again. `is_debug` is the level `debug`,
    at which only `save` writes. `notices` has a sentence for each value without a meaning here.
    """

    settings: CaptureSettings
    enabled: bool | None = None
    is_debug: bool = False
    notices: tuple[str, ...] = ()


def read_config(
    path: str | None,
    task: str | None = None,
    dump_path: str | None = None,
    level: str | None = None,
    step: list[int | str] | None = None,
) -> DebuggerConfig:
    """Return what a config.json asks for; arguments of the constructor come before it.

    Raises:
        UsageError: the file cannot be read, has a key that msprobe has not either, or a wrong value.
    """
    top = _read(path)
    where = path or "the constructor"
    _require_known(top, _TOP | _EARLIER | _SECTIONS, where)
    top |= {
        name: value
        for name, value in (("dump_path", dump_path), ("level", level), ("step", step))
        if value is not None
    }
    wanted = task or top.get("task") or STATISTICS
    if wanted in _OTHER_TASKS:
        raise UsageError(f"{where}: task {wanted} captures nothing; {_OTHER_TASKS[wanted]}")
    if wanted not in (*TASKS, _NAN_CHECK):
        raise UsageError(f"{where}: task is {wanted!r}; expected one of {', '.join(TASKS)}")
    section = top.get(wanted, {})
    if not isinstance(section, dict):
        raise UsageError(f"{where}: {wanted} is {section!r}; expected an object of keys and values")
    _require_known(section, _OF_A_TASK | _EARLIER_OF_A_TASK, f"{where}, {wanted}")
    return _config(wanted, top, section, where)


def _config(task: str, top: dict[str, Any], section: dict[str, Any], where: str) -> DebuggerConfig:
    notices = list(_notices(top, where)) + list(_notices(section, f"{where}, {task}"))
    level = top.get("level") or "L1"
    is_debug = level == DEBUG_LEVEL
    if level == "L2":
        raise UsageError(
            f"{where}: level L2 dumps kernels of an Ascend device, which msprobe does alone"
        )
    if not is_debug and level not in LEVELS:
        known = ", ".join((*LEVELS, DEBUG_LEVEL))
        raise UsageError(f"{where}: level is {level!r}; expected one of {known}")
    if task == _NAN_CHECK:
        notices.append(f"{where}: task nan_check captures statistics, whose Max and Min show NaN")
        task = STATISTICS
    if task == STRUCTURE and level == "L1":
        notices.append(f"{where}: task structure records modules; the level is mix")
        level = "mix"
    values = {
        "path": _value(top, "dump_path", where, lambda given: isinstance(given, str), "a text")
        or _DEFAULT_PATH,
        "task": task,
        "level": "L1" if is_debug else level,
        "steps": _value(top, "step", where, *_NUMBERS) or None,
        "ranks": _value(top, "rank", where, *_NUMBERS) or None,
        "step_by": BY_HAND,
        "stacks": _flag(top, "extra_info", where, True),
        "risk_level": _value(top, "risk_level", where, *_A_RISK_LEVEL) or FOCUS,
        "custom_op_namespaces": _texts(top, "custom_op_namespaces", where),
        "scope": _texts(section, "scope", where),
        "chosen": _texts(section, "list", where),
        "tensor_list": _texts(section, "tensor_list", where),
        "data_mode": _texts(section, "data_mode", where) or ("all",),
        "summary_mode": section.get("summary_mode") or STATISTICS,
        "slices": _slices(section.get("slice"), where),
    }
    _flag(top, "async_dump", where, False)
    try:
        settings = capture_settings(**values)
        Scope(settings.scope, settings.chosen)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    enabled = _flag(top, "dump_enable", where, None)
    return DebuggerConfig(settings, enabled, is_debug, tuple(notices))


def _read(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    if not isinstance(path, str):
        raise UsageError(f"config_path is {path!r}; expected the name of a config.json")
    try:
        found = from_json(read_file(Path(path)))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(
            f"{path} is a {type(found).__name__}; expected an object of keys and values"
        )
    return found


def _require_known(found: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    unknown = sorted(set(found) - known)
    if unknown:
        raise UsageError(
            f"{where} has {', '.join(unknown)}, which msprobe has not either; known are"
            f" {', '.join(sorted(known))}"
        )


def _notices(found: Mapping[str, Any], where: str) -> list[str]:
    """Return a sentence for each value that asks for something that is not done."""
    notices = []
    for name, value in found.items():
        if name in _EARLIER | _EARLIER_OF_A_TASK:
            notices.append(f"{where}: {name} is of an earlier msprobe, and is not read")
        elif name in _WITHOUT_MEANING:
            default, why = _WITHOUT_MEANING[name]
            if value not in (default, None, "", [], {}):
                notices.append(f"{where}: {name} has no meaning here: {why}")
    return notices


def _wrong(where: str, name: str, value: object, expected: str) -> UsageError:
    return UsageError(f"{where}: {name} is {value!r}; expected {expected}")


def _value(
    found: Mapping[str, Any], name: str, where: str, is_right: Callable[[Any], bool], expected: str
) -> Any:
    """Return the value of a key, None where there is none."""
    value = found.get(name)
    if value is not None and not is_right(value):
        raise _wrong(where, name, value, expected)
    return value


def _flag(found: Mapping[str, Any], name: str, where: str, default: Any) -> Any:
    value = _value(found, name, where, lambda given: isinstance(given, bool), "true or false")
    return default if value is None else value


def _texts(found: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    def is_right(given: Any) -> bool:
        return isinstance(given, list) and all(isinstance(each, str) for each in given)

    return tuple(_value(found, name, where, is_right, "a list of texts") or ())


def _slices(found: Any, where: str) -> tuple[TensorSlice, ...]:
    if not found:
        return ()
    if not isinstance(found, list) or not all(isinstance(part, dict) for part in found):
        raise _wrong(
            where, "slice", found, 'a list of objects such as {"dim": 0, "begin": 0, "end": 4}'
        )
    return tuple(_slice(part, where) for part in found)


def _slice(part: dict[str, Any], where: str) -> TensorSlice:
    _require_known(part, frozenset(TensorSlice.__dataclass_fields__), f"{where}, slice")
    for name, value in part.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong(where, f"slice.{name}", value, "a whole number")
        if name in ("dim", "size") and value < 0:
            raise _wrong(where, f"slice.{name}", value, "a number that is not negative")
    return TensorSlice(**part)
