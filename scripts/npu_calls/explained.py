"""How uses are looked up that the sources alone do not tell; what some releases lack, and why that is right.

It adds no use that the sources do not make. Read by the collector and the look-up; `ACCEPTED` is read by the
command and shown on the page. A place in `EXPLAINED` that is not unclear any more is an error of the command,
as is an unclear place without an explanation.
"""

import re
from dataclasses import dataclass

# What is used -> what we do where it is missing.
_SKIP = "its calls are SKIP, with the sentence that it is not an operator of this torch_npu"
_SEEDS = (
    "not seen by this look-up, since `mindspore.common` has a function `seed`, too; without it a step with a"
    " random operator is told not to repeat itself when it is verified"
)
_AMP = (
    "not seen by this look-up, which reads no modules inside of the extension; without it calls are checked"
    " with the dtypes that they were given, also where amp cast these"
)
ACCEPTED: dict[str, str] = {
    "mindspore._c_expression.BackwardNodePy.register_hook": (
        "asked of the installed MindSpore; without it a capture has the gradients that arrive alone"
    ),
    "mindspore.__file__": "every module has it",
    "mindspore._c_expression.amp.get_curr_amp_strategy": _AMP,
    "mindspore._c_expression.amp.get_curr_amp_strategy()": _AMP,
    "mindspore.common.seed._KERNEL_SEED": _SEEDS,
    "mindspore.common.seed._KERNEL_SEED.clear()": _SEEDS,
    "mindspore.common.seed._KERNEL_SEED.update(_)": _SEEDS,
    "torch_npu.npu_cross_entropy_loss": _SKIP,
    "torch_npu.npu_fusion_attention_v2": _SKIP,
    "torch_npu.npu_gelu": _SKIP,
}


# Functions that take a part of a library and look at nothing in it.
TAKES_ANYTHING = ("isinstance", "issubclass", "callable", "id", "repr", "str", "type", "join")
PASSED_ON = ("map_leaves", "flatten_outputs")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Which names a place has whose names vary: in words, and where a constant of ours has them, that."""

    words: str
    base: str = ""
    module: str = ""
    constant: str = ""


_OURS = Explanation("names of our own modules")
_RECORDED = Explanation("names of a dump, asked of the installed framework in every run")
_CAPTURED = Explanation(
    "what the installed framework has there, all of it or by the names that it lists"
)
_SAID = Explanation("a name of a dump in a message")
_DTYPES = Explanation(
    "the dtypes of a dump",
    "mindspore",
    "ray_precheck.frameworks.mindspore.descriptor",
    "DTYPE_NAMES",
)
_LISTED = Explanation("the places of its own list, which are texts there")
EXPLAINED = {
    "__init__.py: __getattr__": _OURS,
    "bench/declared.py: _import_package": Explanation("a module of the user's"),
    "bench/run.py: _at": Explanation("an entry of the user's, or a name of torch"),
    "capture/__init__.py: __getattr__": _OURS,
    "capture/mindspore/calls.py: Calls._replace_functions": _CAPTURED,
    "capture/mindspore/names.py: _collectives": _CAPTURED,
    "capture/mindspore/names.py: _of_module": _CAPTURED,
    "capture/mindspore/names.py: _of_tensor": _CAPTURED,
    "capture/mindspore/names.py: _public": _CAPTURED,
    "capture/mindspore/names.py: _direct_classes": _CAPTURED,
    "capture/mindspore/names.py: entries_of_overloads": _CAPTURED,
    "capture/mindspore/steps.py: ScaledUpdates.watch": _CAPTURED,
    "capture/recording/origins.py: followed": _CAPTURED,
    "commands/diagnose/report.py: _parts": _OURS,
    "commands/report/found.py: RunGroup.view": _OURS,
    "commands/bisect/targets/found.py: find_target": _OURS,
    "commands/bisect/targets/found.py: target_texts": _OURS,
    "commands/bisect/targets/torch_compile/inside.py: open_target": _OURS,
    "commands/bisect/targets/torch_compile/programs.py: _function.load": Explanation(
        "a module of the user's"
    ),
    "commands/bisect/targets/torch_compile/watching.py: _told": Explanation(
        "parts of torch's compiler, which compiles for the CPU or a GPU"
    ),
    "commands/explain/asked.py: _known_names": _RECORDED,
    "commands/explain/asked.py: installed_version": _RECORDED,
    "commands/explain/asked.py: is_installed": _RECORDED,
    "accuracy/standards/user_file.py: _class_of": _OURS,
    "descriptors/descriptor.py: load_part": _OURS,
    "formats/conversion.py: format_of": _OURS,
    "frameworks/mindspore/backend.py: _lookup": _RECORDED,
    "frameworks/mindspore/backend.py: _dtype": _DTYPES,
    "frameworks/mindspore/backend.py: _operations": _RECORDED,
    "frameworks/mindspore/backend.py: _primitive": _RECORDED,
    "frameworks/mindspore/bench/mapping.py: resolve_mindspore": _SAID,
    "frameworks/mindspore/run.py: MindSporeExecution._cast": _DTYPES,
    "frameworks/pytorch/names.py: resolve_torch": _SAID,
    "frameworks/pytorch/backend.py: _resolve_npu": Explanation(
        "names of a dump that have a bench: the operators of this page"
    ),
    "hooks/__init__.py: __getattr__": _OURS,
    "operators/table.py: full_names": _SAID,
    "private_parts.py: demanded": _LISTED,
    "private_parts.py: find": _LISTED,
    "commands/repro/mindspore.py: _cast_lines": _DTYPES,
}

# What calling a function gives, where no annotation of ours says it.
RESULTS = {
    "mindspore.mint.add()": "mindspore.Tensor()",
    "mindspore.ops.cast()": "mindspore.Tensor()",
}

# What torch calls in the module of another device (torch.random._seed_custom_device), by the file of ours
# that calls torch: name, number of arguments.
IMPLIED = {
    ("frameworks/pytorch/backend.py", "torch.manual_seed"): (
        ("torch_npu.npu._is_in_bad_fork", 0),
        ("torch_npu.npu.manual_seed_all", 1),
    ),
}


# What the published reference of pyACL says of the functions that Ray calls; words.py says which pages.
ACL_REFERENCE = {
    "acl.rt.get_device_count()": "takes nothing, returns `(count, ret)`; `ret` is 0 for success",
    "acl.get_soc_name()": "takes nothing, returns a string, None if it fails",
}


@dataclass(frozen=True, slots=True)
class FactKind:
    """A kind of text about NPUs in our sources: what it is, and what is sought in the wheels for it.

    `what` is "" for a text that claims nothing. `sought` is what must stand in a Python file or a library,
    "" for nothing, `{}` for the text itself. `files` says that the text is a pattern of file names of the
    package.
    """

    pattern: re.Pattern[str]
    what: str
    sought: str = ""
    files: bool = False


def _kind(pattern: str, what: str, sought: str = "", *, files: bool = False) -> FactKind:
    return FactKind(re.compile(pattern), what, sought, files)


# A text of ours that may be a fact about NPUs.
FACT = re.compile(r"ASCEND|[Aa]scend|davinci|npu-smi|npu:\d|'npu::")
# Constants whose texts are all words of the libraries, by module.
WORDS_OF_LIBRARIES = {"ray_precheck.check.attempt": "_NO_MEMORY"}
FACT_KINDS = (
    _kind(r"ASCEND_\w+", "variable", "{}"),
    _kind(r"/dev/davinci.*", "device files", "/dev/davinci"),
    _kind(r"npu-smi", "command of the driver", "{}"),
    _kind(r"/usr/local/Ascend/driver/.*", "file of the driver", "Ascend/driver"),
    _kind(r"lib/.*libmindspore_ascend\*", "files of MindSpore", files=True),
    _kind(r'"?Ascend"?', "device of MindSpore", '"Ascend"'),
    _kind(r"npu:0", "device of torch", 'rename_privateuse1_backend("npu")'),
    _kind(r"Ascend \d+\w*", "device, from the list of PCI ids"),
    _kind(r"Could not run 'npu::", "message of torch, read on the CPU alone"),
    _kind(r"(only supports|support) Ascend.*", "message of MindSpore, read on the CPU alone"),
    # The default of a setting of precision_tool, which nothing reads.
    _kind(r"/root/ascend/log/plog/", ""),
    # A name of Python, which the collector finds; a hint, a message, an address, a name of ours.
    _kind(r"ascend", ""),
    _kind(r"/usr/local/Ascend", ""),
    _kind(r"CPU, Ascend", ""),
    _kind(r"(?s).* .*", ""),
    _kind(r"(https?://)?\S+\.\S+/\S*", ""),
    _kind(r"(?=.*\.)[\w.]+(:\w+)?", ""),
)
WORD_KIND = _kind(r".*", "message: no memory is left", "{}")
