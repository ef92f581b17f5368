"""Runs a Paddle model with chosen settings; stands in the interpreter that has Paddle.

Comes in: requests (dicts of JSON, see `Opened.answer`). Goes out: answers, and arrays in .npz files. Loaded
by path by `inside/serve.py`; nothing but the standard library, NumPy and Paddle is imported, since that
interpreter need not have this package. What is said of Paddle was measured with 3.3.1.

A model is of the new format (PIR, `.json`) or of the old one (`.pdmodel`); its parameters stand in one file.
"""

import ctypes
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np

# Operators of a PIR program that compute nothing.
_PARAMETER = "builtin.parameter"
_FEEDS = (_PARAMETER, "builtin.constant", "pd_op.data", "pd_op.feed", "pd_op.fetch")
# What Paddle allocates on a GPU at first.
_GPU_MIB = 256
# The rung with nothing on.
_OFF = "all off"


def open_target(settings: dict[str, Any]) -> "Opened":
    """Import Paddle for a model's format, and load the user's own libraries (operators, kernels, passes)."""
    # The format is a matter of the whole process: with the new one Paddle's programs are PIR programs.
    is_new = settings["model"].endswith(".json")
    os.environ.update({"FLAGS_enable_pir_api": "1" if is_new else "0"})
    # The names of passes are read from the log.
    os.environ.pop("GLOG_minloglevel", None)
    import paddle

    paddle.enable_static()
    for library in settings.get("libraries", ()):
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    return Opened(settings)


class Opened:
    """A model; the program is loaded once it is needed."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.is_new = settings["model"].endswith(".json")

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer one request by its `kind`.

        `describe`: versions, inputs, outputs, parameters and operators. `run`: the outputs with the settings
        of a rung, its switches `off` off. `capture`: the same, and each operator's outputs. `executor`: the
        outputs of the training framework's forward. `crop`: a model of the operators from `first` to before
        `last`, and its inputs.
        """
        return {
            "describe": self._describe,
            "run": self._run,
            "capture": self._capture,
            "executor": self._execute,
            "crop": self._crop,
        }[request["kind"]](request)

    # What there is.

    def _describe(self, request: dict[str, Any]) -> dict[str, Any]:
        import paddle
        from paddle import inference

        program = _Program(self.settings["model"], self.settings["params"], self.is_new)
        trt = tuple(inference.get_trt_compile_version())
        return {
            "versions": {
                "paddle": paddle.__version__,
                "commit": paddle.version.commit,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            "processor": _processor(),
            "has_bf16": "avx512_bf16" in _flags() or "avx512bw" in _flags(),
            "has_gpu": bool(paddle.is_compiled_with_cuda()),
            "tensorrt": list(trt),
            "inputs": program.inputs(),
            "outputs": program.outputs(),
            "parameters": program.parameters(),
            "operators": program.operators(),
        }

    # Runs.

    def _run(self, request: dict[str, Any]) -> dict[str, Any]:
        predictor = self._predictor(request)
        self._feed(predictor, request.get("input", ""))
        predictor.run()
        return {"outputs": self._save_outputs(predictor, request["out"])}

    def _capture(self, request: dict[str, Any]) -> dict[str, Any]:
        predictor = self._predictor(request)
        self._feed(predictor)
        rows: list[dict[str, str]] = []
        arrays: dict[str, Any] = {}
        problems: list[str] = []

        def seen(operator: str, name: str, tensor: Any) -> None:
            try:
                array = _numbers(tensor)
            except (ValueError, RuntimeError, TypeError) as error:
                problems.append(f"{operator}: {str(error).splitlines()[0]}")
                return
            arrays[str(len(rows))] = array
            rows.append({"operator": operator, "name": name, "layout": str(tensor.layout)})

        predictor.register_output_hook(seen)
        predictor.run()
        np.savez(request["values"], **arrays)
        self._save_outputs(predictor, request["out"])
        return {"rows": rows, "problems": problems}

    def _predictor(self, request: dict[str, Any]) -> Any:
        from paddle import inference

        rung, off = request["rung"], request["off"]
        config = self._config(request)
        if rung == _OFF or (rung == "oneDNN" and off):
            _all_off(config)
        elif rung in ("oneDNN", "memory"):
            for name in self.settings.get("passes", ()):
                config.delete_pass(name)
        elif rung == "passes":
            for name in off:
                config.delete_pass(name)
        has_memory = (rung == "memory" and not off) or rung in ("passes", "bf16", "TensorRT")
        if has_memory and not self.is_new:
            config.enable_memory_optim()
        if rung == "bf16" and not off:
            (getattr(config, "enable_onednn_bfloat16", None) or config.enable_mkldnn_bfloat16)()
        if rung == "TensorRT":
            self._add_tensorrt(config, request)
        return inference.create_predictor(config)

    def _config(self, request: dict[str, Any]) -> Any:
        """Return a model's configuration with nothing set but where it runs."""
        from paddle import inference

        params = request.get("params") or self.settings["params"]
        if not self.is_new and not os.path.exists(params):
            # The old format is saved without that file where it has none, and not loaded without it.
            params = os.path.join(os.path.dirname(self.settings["input"]), "none.pdiparams")
            Path(params).touch()
        config = inference.Config(request.get("model") or self.settings["model"], params)
        config.set_cpu_math_library_num_threads(1)
        if self.settings.get("gpu"):
            config.enable_use_gpu(_GPU_MIB, 0)
        return config

    def _add_tensorrt(self, config: Any, request: dict[str, Any]) -> None:
        """Put all operators but those that are off into TensorRT, with the shapes of a run before."""
        from paddle import inference

        shapes = (request.get("input") or self.settings["input"]) + ".shapes"
        if not os.path.exists(shapes):
            collecting = self._config(request)
            collecting.collect_shape_range_info(shapes)
            predictor = inference.create_predictor(collecting)
            self._feed(predictor, request.get("input", ""))
            predictor.run()
            del predictor  # The file is written at its end.
        config.enable_tensorrt_engine(
            workspace_size=1 << 30,
            max_batch_size=1,
            min_subgraph_size=3,
            precision_mode=inference.PrecisionType.Float32,
            use_static=False,
            use_calib_mode=False,
        )
        config.enable_tuned_tensorrt_dynamic_shape(shapes, True)
        config.exp_disable_tensorrt_ops(list(request["off"]))

    def _feed(self, predictor: Any, path: str = "") -> None:
        with np.load(path or self.settings["input"]) as arrays:
            for name in predictor.get_input_names():
                handle = predictor.get_input_handle(name)
                handle.reshape(arrays[name].shape)
                handle.copy_from_cpu(np.ascontiguousarray(arrays[name]))

    def _save_outputs(self, predictor: Any, out: str) -> str:
        names = predictor.get_output_names()
        np.savez(out, **{name: predictor.get_output_handle(name).copy_to_cpu() for name in names})
        return out

    def _execute(self, request: dict[str, Any]) -> dict[str, Any]:
        program = _Program(self.settings["model"], self.settings["params"], self.is_new)
        with np.load(self.settings["input"]) as arrays:
            found = program.run({name: arrays[name] for name in program.feeds})
        names = [each["name"] for each in program.outputs()]
        np.savez(request["out"], **{name: found[n] for n, name in enumerate(names)})
        return {"outputs": request["out"]}

    def _crop(self, request: dict[str, Any]) -> dict[str, Any]:
        first, last, folder = int(request["first"]), int(request["last"]), request["folder"]
        program = _Program(self.settings["model"], self.settings["params"], self.is_new)
        suffix = ".json" if self.is_new else ".pdmodel"
        part = {"params": os.path.join(folder, "part.pdiparams")}
        part["model"] = os.path.join(folder, "part" + suffix)
        part["input"] = os.path.join(folder, "inputs.npz")
        with np.load(self.settings["input"]) as arrays:
            feeds = {name: arrays[name] for name in arrays.files}
        needed = program.made_in_front(first, last)
        if needed:
            # What the operators in front make with everything off is fed to the part.
            front = os.path.join(folder, "front")
            program.save(front, program.given, needed)
            made = {"model": front + suffix, "params": front + ".pdiparams"}
            predictor = self._predictor({"rung": _OFF, "off": [], **made})
            self._feed(predictor)
            predictor.run()
            outputs = predictor.get_output_names()
            for number, name in enumerate(program.cut_names(needed)):
                feeds[name] = predictor.get_output_handle(outputs[number]).copy_to_cpu()
            for each in (suffix, ".pdiparams"):
                Path(front + each).unlink()
        used = program.save_part(os.path.join(folder, "part"), first, last, needed)
        np.savez(part["input"], **{name: feeds[name] for name in used})
        return part


def _all_off(config: Any) -> None:
    # The old format hears the switch alone, the new one the level alone.
    config.switch_ir_optim(False)
    config.set_optimization_level(0)
    (getattr(config, "disable_onednn", None) or config.disable_mkldnn)()


def _numbers(tensor: Any) -> Any:
    """Return a value of a hook as an array, in the order in which its numbers stand."""
    array = np.array(tensor.numpy())
    if array.dtype == np.uint16:  # Its bits; the dtype of NumPy is Paddle's way to say bfloat16.
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array


class _Program:
    """A model as a program of the training framework."""

    feeds: list[str]

    def __init__(self, model: str, params: str, is_new: bool) -> None:
        import paddle

        self.is_new = is_new
        self._paddle = paddle
        self._executor = paddle.static.Executor(paddle.CPUPlace())
        # A scope of its own: parameters of a model that was loaded before have the same names.
        self._scope = paddle.static.Scope()
        with paddle.static.scope_guard(self._scope):
            self.program, self.feeds, self._fetches = paddle.static.load_inference_model(
                str(Path(model).parent),
                self._executor,
                model_filename=Path(model).name,
                # An absolute path: it may stand in another folder.
                params_filename=params,
            )
        self._block = self.program.global_block()

    def run(self, feed: dict[str, Any]) -> list[Any]:
        with self._paddle.static.scope_guard(self._scope):
            found: list[Any] = self._executor.run(self.program, feed=feed, fetch_list=self._fetches)
        return found

    def inputs(self) -> list[dict[str, Any]]:
        if self.is_new:
            by_name = {op.attrs()["name"]: op.results()[0] for op in self._ops("pd_op.data")}
            return [_spec(name, by_name[name]) for name in self.feeds]
        return [_spec(name, self._block.var(name)) for name in self.feeds]

    def outputs(self) -> list[dict[str, Any]]:
        # A predictor names the outputs of a PIR program so.
        return [
            _spec(f"fetch_name_{number}" if self.is_new else each.name, each)
            for number, each in enumerate(self._fetches)
        ]

    def parameters(self) -> list[dict[str, Any]]:
        if self.is_new:
            found = self._ops("builtin.parameter")
            return [_spec(op.attrs()["parameter_name"], op.results()[0]) for op in found]
        listed = [each for each in self.program.list_vars() if each.persistable]
        return [_spec(each.name, each) for each in listed if each.name not in ("feed", "fetch")]

    def operators(self) -> list[str]:
        """Return a name for each operator in their order: its number from 1, its type, what it makes."""
        return [self._said(number, op) for number, op in enumerate(self._computing(), 1)]

    def _said(self, number: int, op: Any) -> str:
        if self.is_new:
            # A value of PIR has no name: the first parameter tells where in the network it stands.
            names = [each.get_defining_op() for each in op.operands_source() if each.initialized()]
            params = [each.attrs()["parameter_name"] for each in names if each.name() == _PARAMETER]
            kind, where = op.name().replace("pd_op.", ""), params[:1]
        else:
            made = [name for name in op.output_arg_names if not self._block.var(name).persistable]
            kind, where = op.type, made[-1:]
        return " ".join([str(number), kind, *(f"({name})" for name in where)])

    def _computing(self) -> list[Any]:
        if self.is_new:
            return [op for op in self._block.ops if op.name() not in _FEEDS]
        return [op for op in self._block.ops if op.type not in ("feed", "fetch")]

    def _ops(self, name: str) -> list[Any]:
        return [op for op in self._block.ops if op.name() == name]

    @property
    def given(self) -> list[Any]:
        """The inputs of the model as values of the program."""
        if self.is_new:
            return [op.results()[0] for op in self._ops("pd_op.data")]
        return [self._block.var(name) for name in self.feeds]

    def save(self, prefix: str, feeds: list[Any], fetches: list[Any]) -> None:
        """Save a model of what these outputs need."""
        static = self._paddle.static
        with static.scope_guard(self._scope):
            static.save_inference_model(
                prefix, feeds, fetches, self._executor, program=self.program
            )

    def made_in_front(self, first: int, last: int) -> list[Any]:
        """Return the values that the operators from `first` to before `last` take from those in front."""
        front, part = self._computing()[:first], self._computing()[first:last]
        found: list[Any] = []
        if self.is_new:
            ids = {op.id() for op in front}
            for op in part:
                for value in op.operands_source():
                    is_made = value.initialized() and value.get_defining_op().id() in ids
                    if is_made and not any(value.is_same(each) for each in found):
                        found.append(value)
            return found
        made = {name for op in front for name in op.output_arg_names}
        taken = dict.fromkeys(name for op in part for name in op.input_arg_names if name in made)
        return [self._block.var(name) for name in taken if not self._block.var(name).persistable]

    def cut_names(self, values: list[Any]) -> list[str]:
        """Return the names under which values are inputs of a part."""
        if self.is_new:
            return [f"cut_{number}" for number in range(len(values))]
        return [value.name for value in values]

    def save_part(self, prefix: str, first: int, last: int, needed: list[Any]) -> list[str]:
        """Save a model of the operators from `first` to before `last`; return the names of its inputs. Its
        outputs are what the operators behind them or the user get; `needed` are `made_in_front`."""
        part = self._computing()[first:last]
        names = self.cut_names(needed)
        if not self.is_new:
            read = {name for op in part for name in op.input_arg_names}
            feeds = [name for name in self.feeds if name in read] + names
            fetches = self._read_later(first, last)
            self.save(prefix, [self._block.var(name) for name in feeds], fetches)
            return feeds
        fetches = _used_outside(part)
        with self._paddle.static.program_guard(self.program):
            self._paddle.base.libpaddle.pir.reset_insertion_point_to_start()
            data = self._paddle.static.data
            cuts = [data(names[n], each.shape, each.dtype) for n, each in enumerate(needed)]
        for number, value in enumerate(needed):
            value.replace_all_uses_with(cuts[number])
        ids = {op.id() for op in part}
        given = {op.attrs()["name"]: op.results()[0] for op in self._ops("pd_op.data")}
        feeds = [
            name for name in self.feeds if any(op.id() in ids for op in given[name].all_used_ops())
        ]
        self.save(prefix, [given[name] for name in feeds] + cuts, fetches)
        return feeds + names

    def _read_later(self, first: int, last: int) -> list[Any]:
        operators = self._computing()
        later = {name for op in operators[last:] for name in op.input_arg_names}
        later.update(each.name for each in self._fetches)
        made = dict.fromkeys(name for op in operators[first:last] for name in op.output_arg_names)
        found = [self._block.var(name) for name in made if name in later]
        return [value for value in found if not value.persistable]


def _used_outside(part: list[Any]) -> list[Any]:
    inside = {op.id() for op in part}
    return [
        value
        for op in part
        for value in op.results()
        if not value.persistable and any(user.id() not in inside for user in value.all_used_ops())
    ]


def _spec(name: str, value: Any) -> dict[str, Any]:
    dtype = str(value.dtype).split(".")[-1].split(":")[0].strip("<>").lower()
    return {"name": name, "shape": [int(size) for size in value.shape], "dtype": dtype}


def _processor() -> str:
    for line in _lines_of("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _flags() -> tuple[str, ...]:
    for line in _lines_of("/proc/cpuinfo"):
        if line.startswith("flags"):
            return tuple(line.split(":", 1)[1].split())
    return ()


def _lines_of(path: str) -> list[str]:
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().splitlines()
