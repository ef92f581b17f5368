"""The cells of the matrix: environments as a host may have them before the package comes.

Goes out: `CELLS`, the default one first, with which the others are compared. Called by `main`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cell:
    """An environment: a minor version of Python, and what its host has installed already.

    `host` are requirements as pip takes them. What they leave open (ray, pandas, orjson, ...) pip
    chooses when it installs the package, as on a user's machine. `also` are arguments for pytest beside
    the unit and framework tests.
    """

    name: str
    python: str
    host: tuple[str, ...]
    also: tuple[str, ...] = ()

    def version_of(self, package: str) -> str:
        """Return the version that the host fixes, "" where it has not got the package."""
        for requirement in self.host:
            name, _, version = requirement.partition("==")
            if name == package:
                return version
        return ""


DEFAULT = Cell(
    "default", "3.11", ("torch==2.13.0", "mindspore==2.10.0", "numpy==1.26.4", "ray==2.60.0")
)

CELLS = (
    DEFAULT,
    Cell("py310-torch24-ms27", "3.10", ("torch==2.4.1", "mindspore==2.7.0", "numpy==1.26.4")),
    Cell("py310-torch26", "3.10", ("torch==2.6.0", "numpy==1.26.4")),
    Cell("py311-torch28-ms28", "3.11", ("torch==2.8.0", "mindspore==2.8.0", "numpy==1.26.4")),
    Cell("py312-torch210-ms29", "3.12", ("torch==2.10.0", "mindspore==2.9.0", "numpy==1.26.4")),
    Cell("py312-torch213-np2", "3.12", ("torch==2.13.0", "numpy==2.4.6")),
    Cell("py313-torch215-np2", "3.13", ("torch==2.15.0", "numpy==2.4.6")),
    Cell(
        "py311-oldest-ray",
        "3.11",
        ("torch==2.13.0", "mindspore==2.10.0", "numpy==1.26.4", "ray==2.10.0"),
        ("tests/cluster", "-m", "not alone"),
    ),
)
