"""ONNX Runtime in its interpreter: sessions with optimizers on and off, and the values of their graphs.

Comes in: settings and requests as JSON, arrays as .npz files. Goes out: answers as JSON, arrays as .npz
files, models. Loaded by its path by `inside/serve.py`, so that it uses nothing but the standard library,
NumPy, onnx and onnxruntime, of Python 3.9 and newer.

Settings: `model`, a path; `inputs`, an .npz file; `providers` beside the CPU; `disabled`, the optimizers that
are off in every trial. Requests, by `kind`:

    describe     -> the versions, the model's inputs and outputs, the execution providers
    optimizers   -> the optimizers of each level, in their order, and whether they change the model
    run          -> runs the model as a trial wants it and writes its outputs to `out`
    values       -> the same, and every value of the graph that the trial's optimizers make, with its nodes
    reference    -> what each node gives by onnx's own implementation, from the values that it really got
    extract      -> writes the part of the model between some values to `out`
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

CPU = "CPUExecutionProvider"
_LEVEL = ort.GraphOptimizationLevel
# ORT_ENABLE_LAYOUT came with 1.23: before, all that is above `extended` is in ORT_ENABLE_ALL.
LEVELS = {
    "off": _LEVEL.ORT_DISABLE_ALL,
    "providers": _LEVEL.ORT_DISABLE_ALL,
    "basic": _LEVEL.ORT_ENABLE_BASIC,
    "extended": _LEVEL.ORT_ENABLE_EXTENDED,
    **({"layout": _LEVEL.ORT_ENABLE_LAYOUT} if hasattr(_LEVEL, "ORT_ENABLE_LAYOUT") else {}),
    "all": _LEVEL.ORT_ENABLE_ALL,
}
# The rewrite rules of all versions from 1.15 to 1.32: the log names only the transformer that holds them, but
# `disabled_optimizers` takes their own names. Which of them a version has, and at which level, it is asked.
RULES = (
    "EliminateIdentity", "EliminateSlice", "UnsqueezeElimination", "EliminateDropout", "ExpandElimination",
    "CastElimination", "CastChainElimination", "PreShapeNodeElimination", "NoopElimination", "DivMulFusion",
    "FuseReluClip", "GemmSumFusion", "GemmTransposeFusion", "NotWhereFusion", "ConvAddFusion",
    "ConvMulFusion", "ConvBNFusion", "Pad_Fusion", "MatMul_BatchNormalization_Fusion", "LabelEncoderFusion",
    "ClipQuantRewrite", "ReluQuantRewrite",
)  # fmt: skip
_RANDOM = (
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
)  # fmt: skip
# What onnx's reference raises for what it cannot do.
_REFERENCE_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
# In the name of a rung, between its level and what is off beside the switches of the trial.
WITHOUT = " without "
_HOLDS_RULES = "_RuleBasedTransformer"
_LOGGED = re.compile(r"GraphTransformer (\S+) modified: ([01])")
_NUMBERS = re.compile(r"tensor\((float|double|float16|u?int(8|16|32|64)|bool)\)")
# A protocol buffer holds 2 GiB; above this, weights travel beside an optimised model.
_LARGE_BYTES = 1_500_000_000


class Inside:
    """The model, and the sessions of it."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._path: str = settings["model"]
        self._inputs: str = settings.get("inputs") or ""
        self._providers: Sequence[str] = settings.get("providers") or ()
        self._disabled: Sequence[str] = settings.get("disabled") or ()
        self._threads = int(settings.get("threads") or 1)
        ort.set_default_logger_severity(3)

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a request asks for."""
        kinds = {
            "describe": self._describe,
            "optimizers": self._optimizers,
            "run": self._run,
            "values": self._values,
            "reference": self._reference,
            "extract": self._extract,
        }
        return kinds[request["kind"]](request)

    def _describe(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        session = self._session(self._path, "off", (), ())
        return {
            "onnxruntime": ort.__version__,
            "onnx": onnx.__version__,
            "providers": ort.get_available_providers(),
            "levels": list(LEVELS),
            "inputs": [_said(each) for each in session.get_inputs()],
            "outputs": [_said(each) for each in session.get_outputs()],
        }

    def _optimizers(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        """The names of each level that can be switched off. `changed`: it changes the model; None where that
        is not known. The names are those of a model of one node, with which no optimizer fails."""
        small = _small_model()
        always = {name for name, _ in self._logged(small, "off")}
        rules = _known_rules(small)
        found: dict[str, list[dict[str, Any]]] = {}
        below = set(always)
        for level in LEVELS:
            if level in ("off", "providers"):
                continue
            names = _of_level([name for name, _ in self._logged(small, level)], below, always)
            below.update(names)
            changes = {name for name, has_changed in self._logged(self._path, level) if has_changed}
            found[level] = [
                row for name in names for row in _with_rules(name, name in changes, rules.get(name))
            ]
        return {"levels": found, "always": sorted(always)}

    def _logged(self, model: str | bytes, level: str) -> list[tuple[str, bool]]:
        return logged(lambda: self._session(model, level, (), (), severity=0))

    def _run(self, request: Mapping[str, Any]) -> dict[str, Any]:
        session = self._session_of(request)
        names = [each.name for each in session.get_outputs()]
        save(request["out"], _flat(names, session.run(None, self._feeds(request))))
        return {"outputs": request["out"]}

    def _values(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """`saved` is where the optimised model goes, "" for the model itself. `is_same`: the outputs have the
        bits that they have where nobody looks at the values."""
        path, saved = request.get("model") or self._path, request.get("saved") or ""
        feeds = self._feeds(request)
        session = self._session_of(request, saved=saved)
        names = [each.name for each in session.get_outputs()]
        plain = _flat(names, session.run(None, feeds))
        model = onnx.load(saved or path, load_external_data=False)
        arrays = self._all_values(model, os.path.dirname(saved or path), feeds)
        save(request["out"], arrays)
        return {
            "outputs": request["out"],
            "graph_outputs": list(plain),
            "nodes": [_node(each) for each in model.graph.node],
            "constants": [each.name for each in model.graph.initializer],
            "is_same": all(
                name not in arrays or _same(arrays[name], value) for name, value in plain.items()
            ),
        }

    def _all_values(
        self, model: onnx.ModelProto, folder: str, feeds: Mapping[str, Any]
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Return all values of a graph that are arrays of numbers, run as it stands."""
        have = {each.name for each in model.graph.output}
        for node in model.graph.node:
            for name in node.output:
                if name and name not in have:
                    have.add(name)
                    model.graph.output.append(onnx.ValueInfoProto(name=name))
        options = self._options("off", 3)
        # The weights beside a model that is handed over as bytes.
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", os.path.abspath(folder)
        )
        session = ort.InferenceSession(model.SerializeToString(), options, providers=[CPU])
        names = [each.name for each in session.get_outputs() if _NUMBERS.fullmatch(each.type)]
        return _flat(names, session.run(names, dict(feeds)))

    def _reference(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """`values` are those that the model really had; `problems` says which nodes cannot be run."""
        from onnx.reference import ReferenceEvaluator

        model = onnx.load(self._path)
        values = dict(self._feeds(request))
        values.update(onnx_weights(model))
        with np.load(request["values"]) as stored:
            values.update({name: stored[name] for name in stored.files})
        found: dict[str, np.ndarray[Any, Any]] = {}
        problems: dict[str, str] = {}
        for node in model.graph.node:
            if node.op_type in _RANDOM:
                problems[node.name or node.output[0]] = "it is random"
                continue
            inputs = list(dict.fromkeys(_inputs_of(node)))
            if any(name not in values for name in inputs):
                problems[node.name or node.output[0]] = "an input is no array of numbers"
                continue
            try:
                run = ReferenceEvaluator(_alone(node, inputs, model, values))
                outputs = run.run(None, {name: values[name] for name in inputs})
            except _REFERENCE_ERRORS as error:
                problems[node.name or node.output[0]] = f"{type(error).__name__}: {error}"
                continue
            found.update(_flat([name for name in node.output if name], outputs))
        save(request["out"], found)
        return {"outputs": request["out"], "problems": problems}

    def _extract(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """`inputs` and `results` are names of values; `values`, an .npz file, has their arrays."""
        from onnx.utils import Extractor

        model = onnx.load(self._path)
        weights = onnx_weights(model)
        known = {
            each.name for each in (*model.graph.value_info, *model.graph.input, *model.graph.output)
        }
        arrays = dict(self._feeds({}))
        with np.load(request["values"]) as stored:
            arrays.update({name: stored[name] for name in stored.files})
        inputs = [name for name in request["inputs"] if name in arrays and name not in weights]
        for name in (*inputs, *request["results"]):
            if name not in known:
                kind = helper.np_dtype_to_tensor_dtype(arrays[name].dtype)
                model.graph.value_info.append(
                    helper.make_tensor_value_info(name, kind, arrays[name].shape)
                )
        part = Extractor(model).extract_model(inputs, list(request["results"]))
        # What graphs inside of a node take from outside, onnx's extraction leaves out.
        there = {each.name for each in part.graph.initializer}
        needed = {name for node in part.graph.node for name in _inputs_of(node)} - there
        part.graph.initializer.extend(
            each for each in model.graph.initializer if each.name in needed
        )
        onnx.save(part, request["out"])
        save(request["inputs_out"], {name: arrays[name] for name in inputs})
        return {
            "model": request["out"],
            "inputs": inputs,
            "nodes": [_node(n) for n in part.graph.node],
        }

    def _session_of(self, request: Mapping[str, Any], saved: str = "") -> ort.InferenceSession:
        path = request.get("model") or self._path
        return self._session(path, request["rung"], request["on"], request["off"], saved=saved)

    def _session(
        self,
        model: str | bytes,
        rung: str,
        on: Sequence[str],
        off: Sequence[str],
        severity: int = 3,
        saved: str = "",
    ) -> ort.InferenceSession:
        level, _, without = rung.partition(WITHOUT)
        options = self._options(level, severity)
        if saved:
            options.optimized_model_filepath = saved
            if isinstance(model, str) and _size_of(model) > _LARGE_BYTES:
                options.add_session_config_entry(
                    "session.optimized_model_external_initializers_file_name",
                    os.path.basename(saved) + ".data",
                )
        given = [name for name in self._providers if name not in without.split(",")]
        providers = {"off": (), "providers": on}.get(level, given)
        # Operators that are random begin anew in each session.
        ort.set_seed(1)
        disabled = [*self._disabled, *off, *filter(None, without.split(","))]
        if level in ("off", "providers"):
            disabled = []
        return ort.InferenceSession(
            model, options, providers=[*providers, CPU], disabled_optimizers=disabled or None
        )

    def _options(self, level: str, severity: int) -> ort.SessionOptions:
        options = ort.SessionOptions()
        options.graph_optimization_level = LEVELS[level]
        options.log_severity_level = severity
        # One thread: the order of sums is the same in all trials, and trials run side by side.
        options.intra_op_num_threads = options.inter_op_num_threads = self._threads
        return options

    def _feeds(self, request: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        with np.load(request.get("inputs") or self._inputs) as stored:
            return {name: stored[name] for name in stored.files}


def open_target(settings: Mapping[str, Any]) -> Inside:
    """Return what answers requests about a model."""
    return Inside(settings)


def logged(start: Callable[[], Any]) -> list[tuple[str, bool]]:
    """Return the optimizers that the log of a call names, in their order, and whether they changed the graph.

    The log goes to the descriptor of stderr, past Python. Where an optimizer fails, those after it are not
    logged.
    """
    with tempfile.TemporaryFile() as log:
        # The exceptions of ONNX Runtime have no class in common but this one.
        with _stderr_to(log.fileno()), contextlib.suppress(Exception):
            start()
        log.seek(0)
        found = _LOGGED.findall(log.read().decode("utf-8", errors="replace"))
    return [(name, changed == "1") for name, changed in found]


@contextlib.contextmanager
def _stderr_to(descriptor: int) -> Iterator[None]:
    before = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def _small_model() -> bytes:
    """Return a model of one node."""
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    imports = [helper.make_opsetid("", 13)]
    made: bytes = helper.make_model(graph, opset_imports=imports, ir_version=7).SerializeToString()
    return made


def _known_rules(model: bytes) -> dict[str, tuple[list[str], bool]]:
    """Return the rules that this version has, by the name of the transformer that holds them, and whether
    these are all that it holds: without any rule it is left out."""

    def holders(off: Sequence[str]) -> list[str]:
        options = ort.SessionOptions()
        options.log_severity_level = 0
        options.graph_optimization_level = _LEVEL.ORT_ENABLE_ALL
        names = logged(
            lambda: ort.InferenceSession(
                model, options, providers=[CPU], disabled_optimizers=list(off)
            )
        )
        return sorted({name for name, _ in names if name.endswith(_HOLDS_RULES)})

    without = holders(RULES)
    found: dict[str, tuple[list[str], bool]] = {}
    for rule in RULES:
        for holder in holders([each for each in RULES if each != rule]):
            if holder not in without:
                found.setdefault(holder, ([], True))[0].append(rule)
    for holder in without:
        found[holder] = (found.get(holder, ([], False))[0], False)
    return found


def _of_level(log: Sequence[str], below: set[str], always: set[str]) -> list[str]:
    """Return the optimizers of the highest level of a log: from the first name that the levels below lack to
    the last one that is new. What is known from below and stands in between runs at both: MatMulAddFusion."""
    first: dict[str, int] = {}
    for index, name in enumerate(log):
        if name not in below:
            first.setdefault(name, index)
    if not first:
        return []
    window = log[min(first.values()) : max(first.values()) + 1]
    return [name for name in dict.fromkeys(window) if name not in always]


def _with_rules(
    name: str, has_changed: bool, held: tuple[list[str], bool] | None
) -> list[dict[str, Any]]:
    """Return an optimizer, or the rules that it holds: where it changed nothing, they did neither."""
    own = {"name": name, "changed": has_changed}
    if held is None:
        return [own]
    names, is_complete = held
    changed = None if has_changed else False
    rules = [{"name": rule, "changed": changed, "holder": name} for rule in names]
    return rules if is_complete else [own, *rules]


def onnx_weights(model: onnx.ModelProto) -> dict[str, np.ndarray[Any, Any]]:
    """Return the constants of a graph by name."""
    return {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}


def _alone(
    node: onnx.NodeProto, names: Sequence[str], model: onnx.ModelProto, values: Mapping[str, Any]
) -> onnx.ModelProto:
    """Return a model of one node with these inputs."""
    kind = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(name, kind(values[name].dtype), values[name].shape)
            for name in names
        ],
        [onnx.ValueInfoProto(name=name) for name in node.output if name],
    )
    return helper.make_model(
        graph,
        opset_imports=model.opset_import,
        ir_version=model.ir_version,
        functions=model.functions,
    )


def _node(node: onnx.NodeProto) -> dict[str, Any]:
    return {
        "name": node.name,
        "op": node.op_type,
        "inputs": _inputs_of(node),
        "outputs": [name for name in node.output if name],
    }


def _inputs_of(node: onnx.NodeProto) -> list[str]:
    """Return the inputs of a node, with what the graphs inside of it take from outside."""
    found = list(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            own = {each.name for each in (*graph.input, *graph.initializer)}
            for each in graph.node:
                found += (name for name in _inputs_of(each) if name not in own)
                own.update(each.output)
    return [name for name in found if name]


def _said(value: Any) -> dict[str, Any]:
    """Return an input or an output of a session; a dimension is a number, a name, or None."""
    return {"name": value.name, "type": value.type, "shape": list(value.shape or [])}


def _flat(names: Sequence[str], values: Sequence[Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of outputs; those of a sequence by `name[0]`, and so on."""
    found: dict[str, np.ndarray[Any, Any]] = {}
    for name, value in zip(names, values):  # noqa: B905 -- `strict` came with Python 3.10
        if isinstance(value, (list, tuple)):
            found.update({f"{name}[{i}]": _plain(each) for i, each in enumerate(value)})
        elif value is not None:
            found[name] = _plain(value)
    return found


def _plain(value: Any) -> np.ndarray[Any, Any]:
    """Return an array that a file can hold: texts come as objects."""
    array = np.asarray(value)
    return array.astype(str) if array.dtype == object else array


def save(path: str, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write arrays as an .npz file; `numpy.savez` takes no array that is called "file"."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(  # type: ignore[no-untyped-call]
                    entry, np.asarray(array), allow_pickle=False
                )


def _same(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    return (
        one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    )


def _size_of(path: str) -> int:
    """Return the bytes of a model with those of the weights beside it."""
    model = onnx.load(path, load_external_data=False)
    beside = {
        entry.value
        for each in model.graph.initializer
        for entry in each.external_data
        if entry.key == "location"
    }
    folder = os.path.dirname(path)
    found = [os.path.join(folder, name) for name in beside]
    return os.path.getsize(path) + sum(
        os.path.getsize(each) for each in found if os.path.exists(each)
    )
