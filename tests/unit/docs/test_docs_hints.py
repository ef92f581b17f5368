"""What messages of the package and of the scripts advise exists: options, files, variables, packages."""

import ast
import importlib.util
import mmap
import re
from collections.abc import Iterator
from importlib.metadata import files, version
from pathlib import Path

import pytest
from markdown_text import ROOT
from test_docs_references import options_of_ray_precheck

from ray_precheck.commands.inspect.options import WORDS
from ray_precheck.commands.inspect.words import options_of_word

pytestmark = pytest.mark.unit
PACKAGE = ROOT / "ray_precheck"
SHELL = [
    path
    for folder in (ROOT / "cluster", ROOT / "scripts")
    for path in sorted(folder.iterdir())
    if path.is_file() and path.suffix in ("", ".sh", ".sbatch")
]
_OPTION = re.compile(r"(?<![\w{$-])--?[a-zA-Z][\w-]*")
_VARIABLE = re.compile(r"(?<![\w.$])[A-Z][A-Z0-9]*(?:_[A-Za-z0-9]+)+(?![\w(])")
_FILE = re.compile(r"(?<![\w{}./*])(?:ray_precheck|scripts|cluster|tests)/[\w./-]+")
_PIP = re.compile(r"pip install ([^;,)]*)")
# Options of python itself, of npu-smi and of msaccucmp, which the package calls.
_OF_PROGRAMS = {
    "-E",
    "-I",
    "-P",
    "-S",
    "-W",
    "-X",
    "-c",
    "-h",
    "-l",
    "-out",
    "-m",
    "--check-hash-based-pycs",
}
# Of MegEngine's load_and_run and compare_binary_iodump, which `ray_precheck.tools` has under their names.
_OF_MEGENGINE = {
    "-e", "-s", "--stop-on-error", "--io-dump", "--bin-io-dump", "--input", "--reproducible", "--fast-run",
    "--cuda", "--cpu", "--iter", "--enable-nchw44",
}  # fmt: skip
# Of git, which `bisect run --commits` calls.
_OF_GIT = {
    "--bare", "--detach", "--end-of-options", "--first-parent", "--format", "--full-tree", "--git-dir",
    "--init", "--name-only", "--quiet", "--reverse", "--shared", "--show-prefix", "--show-toplevel",
    "--verify",
}  # fmt: skip
# Of CANN's msaccucmp.
_OF_CANN = {"-out"}
# No options, though they look like them: the end of site-packages, of a place of a device, of a file.
_NO_OPTIONS = {"-packages", "-inp", "-Infinity", "-infinity", "-inf"}
# Written in capitals, and read as no variable: names of Python, MindSpore and C.
_NO_VARIABLES = {
    "ACROSS_CHANNELS", "IN_ERROR", "LU_data", "LU_pivots", "MAP_POPULATE", "MINDSPORE_ROWS",
    "MINDSPORE_SWITCHES", "TORCH_SWITCHES",
    "NOTHING_CHECKED", "NPU_ROWS", "NPU_Stack_Info", "PYNATIVE_MODE", "RIGHT_LEFT",
    "SC_PAGE_SIZE", "SC_PHYS_PAGES", "FRACTAL_NZ", "FRACTAL_Z",
    # Modes of TensorFlow's debugger.
    "CONCISE_HEALTH", "CURT_HEALTH", "FULL_HEALTH", "FULL_TENSOR", "NO_TENSOR",
    # Dtypes of safetensors.
    "F8_E4M3", "F8_E5M2",
    "TORCH_ROWS", "BESSEL_ROWS", "OPTIMIZER_ROWS", "QUANTIZED_ROWS",
    # Instructions of Python's bytecode.
    "CALL_FUNCTION", "CALL_FUNCTION_KW", "CALL_KW", "CALL_METHOD", "KW_NAMES", "LOAD_CONST",
}  # fmt: skip
# Read by torch and its MKL, by MegEngine, by compilers of torch and MindSpore, and set by launchers.
_OF_FRAMEWORKS = {
    "ATEN_CPU_CAPABILITY",
    "MGB_USE_MEGDNN_DBG",
    "MKL_CBWR",
    "TORCH_COMPILE_DISABLE",
    "MS_JIT",
    "RANK_ID",
    "LOCAL_WORLD_SIZE",
}
# Read by what `bisect` runs, by the sitecustomize of its attributes, and by git.
_OF_TRIALS = {
    "BISECT_ATTRIBUTES", "BISECT_ATTRIBUTES_TOLD", "BISECT_COMMIT", "BISECT_GOLDEN", "BISECT_OUTPUTS",
    "BISECT_TRIAL", "GIT_DIR", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_WORK_TREE",
    # Read by Paddle, and by torch's compiler with a prefix in front; levels of ONNX Runtime.
    "FLAGS_enable_pir_api", "GLOG_minloglevel", "TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS",
    "TORCHDYNAMO_DISABLE",
    "AUTOGRAD_CACHE", "AUTOGRAD_REMOTE_CACHE", "FX_GRAPH_CACHE", "FX_GRAPH_REMOTE_CACHE",
    "DISABLE_ALL", "ENABLE_LAYOUT", "ORT_ENABLE_LAYOUT",
}  # fmt: skip
# Read by the drivers of the devices: CANN's runtime and CUDA's.
_OF_DRIVERS = {
    "NVIDIA_TF32_OVERRIDE",
    "DUMP_GE_GRAPH",
    "DUMP_GRAPH_LEVEL",
    "DUMP_GRAPH_PATH",
    "ASCEND_RT_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
}
# Read by the library of linear algebra in numpy.
_OF_NUMPY = {"OPENBLAS_NUM_THREADS"}
# Read by `inspect`: https://no-color.org, and the XDG Base Directory Specification.
_OF_SHELLS = {"NO_COLOR", "XDG_CACHE_HOME", "XDG_STATE_HOME"}
# Settings in precision_tool's config.py, and what its words set for the script.
_OF_PRECISION_TOOL = {
    "DATA_ROOT_DIR",
    "PRECISION_TOOL_DUMP",
    "PRECISION_TOOL_OVERFLOW",
    "CMD_ROOT_PATH",
    "LOG_LEVEL",
    "ROOT_DIR",
    "TF_DUMP_STEP",
}
# Read by protobuf.
_OF_PROTOBUF = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
# The distributions that are there to be installed under these names (looked up in November 2026).
_DISTRIBUTIONS = {
    "rich",
    "torch",
    "torch_npu",
    "mindspore",
    "ray",
    "mindstudio-probe",
    "megengine",
    "tensorflow",
    "numpy",
}


def messages(file: Path) -> Iterator[str]:
    """Yield the texts of a module that are no docstrings; those of an f-string without its values."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    inside = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in node.values}
            yield "".join(
                part.value if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
        elif isinstance(node, ast.Constant) and id(node) not in docstrings | inside:
            yield str(node.value)


TEXTS = [
    (file.relative_to(ROOT), text) for file in PACKAGE.rglob("*.py") for text in messages(file)
]


def found_in_texts(pattern: re.Pattern[str]) -> dict[str, set[str]]:
    """Return what a pattern finds in the messages, with the files that have it."""
    found: dict[str, set[str]] = {}
    for file, text in TEXTS:
        for name in pattern.findall(text):
            found.setdefault(name, set()).add(str(file))
    return found


def test_every_option_of_a_message_exists() -> None:
    found = found_in_texts(_OPTION)
    assert len(found) > 40
    of_words = {option for word in WORDS for option in options_of_word(word)}
    of_others = _OF_PROGRAMS | _OF_MEGENGINE | _OF_CANN | _OF_GIT
    known = options_of_ray_precheck() | of_words | of_others | _NO_OPTIONS
    assert {option: files for option, files in found.items() if option not in known} == {}


def test_every_file_of_a_message_exists() -> None:
    found = found_in_texts(_FILE)
    assert "ray_precheck/accuracy/VERDICTS.md" in found
    assert [name for name in found if not (ROOT / name.rstrip(".")).exists()] == []


def test_every_variable_of_a_message_is_read_somewhere() -> None:
    found = (
        set(found_in_texts(_VARIABLE))
        - _NO_VARIABLES
        - _OF_DRIVERS
        - _OF_TRIALS
        - _OF_FRAMEWORKS
        - _OF_NUMPY
        - _OF_SHELLS
        - _OF_PRECISION_TOOL
        - {_OF_PROTOBUF}
    )
    # Found without loading it, which only the first of several frameworks may do.
    protobuf = next(
        path for path in files("protobuf") or () if path.name == "api_implementation.py"
    )
    assert _OF_PROTOBUF in protobuf.read_text()
    own = {name for name in found if name.startswith("RAY_PRECHECK_")}
    # The debugger's is read by `private_parts.find`, those of a capture by its sitecustomize.
    captures = {"RAY_PRECHECK_CAPTURE", "RAY_PRECHECK_CAPTURED_FRAMEWORKS"}
    assert own == {*captures, "RAY_PRECHECK_DEBUG"}
    unread = sorted(name for name in found - own if not ray_reads(name))
    assert not ray_reads("RAY_NEVER_HEARD_OF")
    if unread and f"ray=={version('ray')}" not in (ROOT / "constraints.txt").read_text("utf-8"):
        pytest.skip(f"ray {version('ray')} does not read {', '.join(unread)}")
    assert unread == []


def ray_reads(name: str) -> bool:
    """Whether the installed Ray has the name of a variable, in Python or in C++, there without RAY_."""
    spec = importlib.util.find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    if any(
        has(path, name)
        for part in ("_private", "_common")
        for path in (folder / part).rglob("*.py")
    ):
        return True
    return any(
        has(folder / binary, text)
        for binary in ("_raylet.so", "core/src/ray/raylet/raylet")
        for text in (name, name.removeprefix("RAY_"))
    )


def has(path: Path, text: str) -> bool:
    if not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(text.encode()) >= 0


@pytest.mark.parametrize("path", SHELL, ids=lambda path: path.name)
def test_every_option_and_variable_that_a_script_advises_is_read(path: Path) -> None:
    """By the script itself, what it sources, or the script that it names in the same sentence."""
    shared = "\n".join(each.read_text(encoding="utf-8") for each in SHELL)
    known = {
        option
        for line in re.findall(r"(?m)^\s*(-[^()]*)\)", shared)
        for option in re.split(r"[ |]+", line)
    } | options_of_ray_precheck()
    told = [line for line in path.read_text(encoding="utf-8").splitlines() if _is_told(line)]
    advised = {
        option for line in told for option in _OPTION.findall(_quoted(line)) if "--" in option
    }
    assert advised - known == set()
    files = {name.rstrip(".") for line in told for name in _FILE.findall(line)}
    assert {name for name in files if not (ROOT / name).exists()} == set()
    read = set(re.findall(r"\$\{?(RAY_\w+)", shared))
    names = {name for line in told for name in re.findall(r"\bRAY_[A-Z_]*[A-Z]\b", line)}
    assert {name for name in names if name not in read and not ray_reads(name)} == set()


def _is_told(line: str) -> bool:
    return bool(re.search(r"\bfail \"|\becho \"", line))


def _quoted(line: str) -> str:
    return line[line.index('"') :]


def test_every_package_that_is_advised_exists_and_replaces_no_torch() -> None:
    texts = [text for _, text in TEXTS]
    texts += [
        line for path in SHELL for line in path.read_text("utf-8").splitlines() if _is_told(line)
    ]
    commands = [found for text in texts for found in _PIP.findall(text)]
    assert len(commands) >= 5
    for command in commands:
        # A checkout; the package of a framework of somebody else's is named by its own descriptor.
        found = re.match(r"'?([\w.-]+|\{\})(?:\[\w+\])?(==)?", command)
        assert found is not None, command
        name, pinned = found.groups()
        assert name in _DISTRIBUTIONS | {".", "{}"}, command
        # Each of these asks for one version of another package that is there.
        assert pinned or name not in ("torch_npu", "ray"), command
