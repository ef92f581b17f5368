"""The standards as sentences: the limits of an operator by dtype, and their sources.

Comes in: the name of an operator in a dump, and its framework. Goes out: lines of text. Called by
`commands.explain.explanation`.
"""

from collections.abc import Iterator

from ray_precheck.accuracy.standards.published import (
    METRIC_NAMES,
    level_of,
    published_standard,
    ratio_limits,
)
from ray_precheck.accuracy.thresholds import (
    ABSOLUTE_RTOL,
    ABSOLUTE_SMALL_VALUE_ATOL,
    COSINE_LIMIT,
    MAX_ABS_ERR_LIMIT,
    SMALL_VALUE,
    THOUSANDTH_LIMIT,
    THOUSANDTH_SHARE,
    ULP_MEAN_LIMIT,
    ULP_SHARE_LIMIT,
    ULP_THRESHOLD,
    allowed,
)

DTYPES_SHOWN = ("float16", "bfloat16", "float32")
PUBLISHED_SOURCE = (
    "source: msprobe (mindstudio-probe 26.2), api_precision_standard.yaml and standard_config.py"
)


def msprobe_lines() -> Iterator[str]:
    """Yield the limits of the default standard, the same for every operator and dtype."""
    yield (
        f"cosine similarity above {COSINE_LIMIT:g} and largest absolute error below"
        f" {MAX_ABS_ERR_LIMIT:g}, in every dtype"
    )
    yield (
        "source: msprobe (mindstudio-probe 26.2), core/common/const.py, whose limit of the error is 0.001;"
        " the limit of this project is stricter"
    )


def auto_lines(type_name: str, framework: str) -> Iterator[str]:
    """Yield the limits of `auto` by dtype."""
    for dtype in DTYPES_SHOWN:
        rule = allowed(type_name, dtype, framework)
        parts = [
            f"RMSE up to {rule.rmse:g} times and largest error up to {rule.largest:g} times that of the"
            " worst honest implementation",
            f"{rule.units:g} units in the last place are always allowed",
        ]
        if rule.share:
            of = "the output's largest magnitude" if rule.adds else "each element's magnitude"
            parts.append(f"so is {rule.share:.2g} of {of}, which a fast approximation takes")
        parts.append(f"inputs may be off by {rule.input_units:g} units")
        yield f"{dtype}: {'; '.join(parts)}"
    yield "source: ray_precheck/accuracy/VERDICTS.md (honest implementations and planted faults)"


def published_lines(type_name: str, framework: str) -> Iterator[str]:
    """Yield the standard that is published for each direction, with its limits by dtype."""
    directions: dict[str, list[str]] = {}
    for direction in ("forward", "backward"):
        # The lists are of operators: every dtype of these has the same standard.
        name = published_standard(type_name, DTYPES_SHOWN[-1], direction, framework)
        directions.setdefault(name, []).append(direction)
    for name, of in directions.items():
        yield f"{' and '.join(of)}: {name}{_level(name, type_name, framework)}"
        yield from (f"  {line}" for line in _limits(name, type_name, framework))
    yield "integers and booleans: equal, element by element; float8: units in the last place"
    yield PUBLISHED_SOURCE


def _level(name: str, type_name: str, framework: str) -> str:
    return f" {level_of(type_name, framework)}" if name == "benchmark" else ""


def _limits(name: str, type_name: str, framework: str) -> Iterator[str]:
    if name == "benchmark":
        ratios = ratio_limits(level_of(type_name, framework))
        texts = [f"{METRIC_NAMES[metric]} {limit:g}" for metric, limit in ratios.items()]
        yield f"at most these multiples of the error of torch's operator on the CPU: {', '.join(texts)}"
    elif name == "binary":
        yield "equal to the bench as the dtype holds it, element by element"
    elif name == "thousandth":
        yield (
            f"at least {THOUSANDTH_SHARE:.1%} of the elements have a relative error below"
            f" {THOUSANDTH_LIMIT:g}"
        )
    else:
        rows = _of_absolute if name == "absolute" else _of_ulp
        yield from (f"{dtype}: {rows(dtype)}" for dtype in DTYPES_SHOWN)


def _of_absolute(dtype: str) -> str:
    return (
        f"no relative error above {ABSOLUTE_RTOL[dtype]:.3g}; below {SMALL_VALUE[dtype]:.3g} no absolute"
        f" error above {ABSOLUTE_SMALL_VALUE_ATOL[dtype]:.3g}"
    )


def _of_ulp(dtype: str) -> str:
    share = (
        f"at most {ULP_SHARE_LIMIT[dtype]:.1%} of the elements are off by more than"
        f" {ULP_THRESHOLD[dtype]:g} units in the last place"
    )
    mean = ULP_MEAN_LIMIT[dtype]
    return share if mean is None else f"{share}, or the mean error is below {mean:g} units"
