"""The standards by name.

Comes in: a name of `--standard`, or of a user's file. Goes out: the class of a standard, which
without arguments has the published limits. Called by the session and by `user_file`.
"""

from collections.abc import Callable

from ray_precheck.accuracy.standards.absolute import Absolute
from ray_precheck.accuracy.standards.auto.rule import Auto
from ray_precheck.accuracy.standards.base import Standard
from ray_precheck.accuracy.standards.benchmark import Benchmark
from ray_precheck.accuracy.standards.binary import Binary
from ray_precheck.accuracy.standards.msprobe import Msprobe
from ray_precheck.accuracy.standards.published import Published
from ray_precheck.accuracy.standards.thousandth import Thousandth
from ray_precheck.accuracy.standards.ulp import Ulp

_ALL = (Msprobe, Auto, Published, Benchmark, Absolute, Binary, Ulp, Thousandth)
STANDARDS: dict[str, Callable[..., Standard]] = {kind.name: kind for kind in _ALL}
