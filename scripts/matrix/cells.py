"""The cells of the matrix: environments as a host may have them before the package comes.

Goes out: `CELLS`, the default one first, with which the others are compared. Called by `main` and
`attempt`.
"""

from dataclasses import dataclass

_ALL_UNIT = ("tests/unit",)
# Most unit tests know neither a framework nor Ray: they differ with Python and NumPy at most.
# These are where some ask for a framework, for Ray or for what is installed.
_ASKING_UNIT = tuple(
    f"tests/unit/{folder}" for folder in ("bench", "check", "dump", "frameworks", "runtime")
)
# Simulated histories of the driver: minutes of Python that knows no framework, the same in each cell.
_HISTORIES = "tests/unit/runtime/test_runtime_histories.py"
_FRAMEWORKS = ("tests/frameworks",)
# Where what Ray does is what a test is about.
_ON_RAY = tuple(
    f"tests/cluster/test_cluster_{name}.py"
    for name in ("runs", "faults", "nodes", "placement", "shipper", "versions")
)


@dataclass(frozen=True, slots=True)
class Cell:
    """An environment: a minor version of Python, and what its host has installed already.

    `host` are requirements as pip takes them. What they leave open (ray, pandas, orjson, ...) pip
    chooses when it installs the package, as on a user's machine. `like` names cells that run all unit
    tests, of which one has the same Python and one the same NumPy; without it, the cell runs them all.
    `also` are arguments for pytest beside the unit and
    framework tests.
    """

    name: str
    python: str
    host: tuple[str, ...]
    like: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    def version_of(self, package: str) -> str:
        """Return the version that the host fixes, "" where it has not got the package."""
        for requirement in self.host:
            name, _, version = requirement.partition("==")
            if name == package:
                return version
        return ""

    def suites(self) -> tuple[tuple[str, ...], ...]:
        """Return the arguments of each run of pytest.

        Each runs in processes of its own, as the package has it: MindSpore 2.7 cannot be loaded where
        Ray is.
        """
        unit = _ASKING_UNIT if self.like else _ALL_UNIT
        if self.name != DEFAULT.name:
            unit = (*unit, "--ignore", _HISTORIES)
        return tuple(filter(None, (self.also, _FRAMEWORKS, unit)))


DEFAULT = Cell(
    "default", "3.11", ("torch==2.13.0", "mindspore==2.10.0", "numpy==1.26.4", "ray==2.60.0")
)

CELLS = (
    DEFAULT,
    Cell("py310-torch24-ms27", "3.10", ("torch==2.4.1", "mindspore==2.7.0", "numpy==1.26.4")),
    Cell("py310-torch26", "3.10", ("torch==2.6.0", "numpy==1.26.4"), like=("py310-torch24-ms27",)),
    Cell(
        "py311-torch28-ms28",
        "3.11",
        ("torch==2.8.0", "mindspore==2.8.0", "numpy==1.26.4"),
        like=(DEFAULT.name,),
    ),
    Cell("py312-torch210-ms29", "3.12", ("torch==2.10.0", "mindspore==2.9.0", "numpy==1.26.4")),
    Cell(
        "py312-torch213-np2",
        "3.12",
        ("torch==2.13.0", "numpy==2.4.6"),
        like=("py312-torch210-ms29", "py313-torch215-np2"),
    ),
    Cell("py313-torch215-np2", "3.13", ("torch==2.15.0", "numpy==2.4.6")),
    Cell(
        "py311-oldest-ray",
        "3.11",
        ("torch==2.13.0", "mindspore==2.10.0", "numpy==1.26.4", "ray==2.10.0"),
        like=(DEFAULT.name,),
        also=(*_ON_RAY, "-m", "not alone"),
    ),
)
