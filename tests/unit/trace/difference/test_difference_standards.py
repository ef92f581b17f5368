"""The verdict of each standard, and what every standard says alike."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from captured_pairs import from_files, from_statistics, judged, record, statistics

from ray_precheck.trace.difference.rows import ComparisonMode, TensorRow, metric_cells
from ray_precheck.trace.difference.standards.auto import judge_by_auto
from ray_precheck.trace.difference.standards.registry import NO_ELEMENTS, STANDARDS, judge_rows

pytestmark = pytest.mark.unit

REAL, STATISTICS, DIGESTS = ComparisonMode.REAL, ComparisonMode.STATISTICS, ComparisonMode.DIGESTS
RAMP = (np.arange(4096, dtype=np.float32).reshape(64, 64) + 1) / 4096
ALL = list(STANDARDS)


def off_by(share: float, array: Any = RAMP) -> Any:
    """Return values with an error of random signs, of a share of each."""
    signs = np.random.default_rng(0).choice([-1, 1], array.shape)
    return (array * (1 + share * signs)).astype(array.dtype)


def put(value: float, place: int = 70, array: Any = RAMP) -> Any:
    found = array.copy()
    found.reshape(-1)[place] = value
    return found


def outputs(folder: Path, target: Any, golden: Any, brought: float = 0.0) -> list[TensorRow]:
    """Return the rows of an operator with one input and one output."""
    return from_files(folder, ([off_by(brought)], [target]), ([RAMP], [golden]))


def test_the_default_of_the_command_is_there_and_named_once() -> None:
    others = [
        "msprobe",
        "ptdbg",
        "npu-hooks",
        "megengine",
        "precision_tool",
        "assert-close",
        "auto",
    ]
    assert others == ALL


@pytest.mark.parametrize("standard", ALL)
def test_equal_tensors_pass(tmp_path: Path, standard: str) -> None:
    rows = outputs(tmp_path, RAMP, RAMP)
    assert judged(rows, standard, REAL) == ["pass", "pass"]
    told = ["error 0, of its inputs at most 0"] if standard == "megengine" else []
    assert [row.messages for row in rows] == [[], told]


@pytest.mark.parametrize("standard", ["msprobe", "npu-hooks", "megengine", "assert-close", "auto"])
@pytest.mark.parametrize(
    ("target", "golden"),
    [
        (put(math.inf), put(-math.inf)),
        (put(math.nan), RAMP),
        (RAMP, put(math.nan)),
        (put(math.inf), RAMP),
        (put(math.nan), put(math.nan, 71)),
    ],
)
def test_what_is_not_finite_on_one_side_is_an_error(
    tmp_path: Path, standard: str, target: Any, golden: Any
) -> None:
    rows = outputs(tmp_path, target, golden)
    assert judged(rows, standard, REAL) == ["pass", "error"]
    if standard != "megengine":
        assert "the first at [1, 6]" in rows[1].messages[0]


def test_msprobe_says_where_it_would_pass(tmp_path: Path) -> None:
    rows = outputs(tmp_path, put(math.inf), put(-math.inf))
    judged(rows, "msprobe", REAL)
    assert rows[1].messages == [
        "error: 1 of 4096 elements are infinities of opposite signs, the first at [1, 6] (msprobe passes"
        " this)"
    ]


@pytest.mark.parametrize("standard", ["msprobe", "npu-hooks", "megengine", "assert-close", "auto"])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"Max": "Infinity"}, {"Max": "-Infinity"}),
        ({"Max": "NaN", "Min": "NaN"}, {}),
        ({}, {"Max": "NaN", "Min": "NaN"}),
    ],
)
def test_statistics_that_are_not_finite_on_one_side_are_an_error(
    standard: str, ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    rows = from_statistics(record([], [statistics(**ours)]), record([], [statistics(**theirs)]))
    assert judged(rows, standard, STATISTICS) == ["error"]


@pytest.mark.parametrize(
    "standard", ["npu-hooks", "megengine", "assert-close", "auto", "msprobe", "ptdbg"]
)
def test_other_shapes_are_an_error(tmp_path: Path, standard: str) -> None:
    rows = outputs(tmp_path, RAMP[:32], RAMP)
    assert judged(rows, standard, REAL) == ["pass", "error"]


@pytest.mark.parametrize("standard", ALL)
def test_what_stood_in_memory_is_no_error(tmp_path: Path, standard: str) -> None:
    """Neither what `new_empty` returns nor what `copy_` writes over whole; what it wrote counts."""
    odd = put(math.nan, array=RAMP * 7)
    for place, (key, target, golden, results) in enumerate(
        [
            ("Tensor.new_empty.0.forward", ([RAMP], [odd]), ([RAMP], [RAMP]), ["pass", "pass"]),
            ("Tensor.copy_.0.forward", ([odd, RAMP], [RAMP]), ([RAMP, RAMP], [RAMP]), ["pass"] * 3),
            (
                "Tensor.normal_.0.forward",
                ([odd], [off_by(0.5)]),
                ([RAMP], [RAMP]),
                ["pass", "error"],
            ),
            ("Tensor.add_.0.forward", ([odd], [odd]), ([RAMP], [RAMP]), ["error", "error"]),
        ]
    ):
        folder = tmp_path / str(place)
        folder.mkdir()
        rows = from_files(folder, target, golden, key=key)
        found = judged(rows, standard, REAL)
        if standard in ("msprobe", "assert-close", "auto"):  # the others pass much more
            assert found == results
        assert found[0] == "pass" or "add_" in key
    changed = from_files(
        tmp_path / "0", ([], [RAMP[:32]]), ([], [RAMP]), key="Torch.empty.0.forward"
    )
    assert judged(changed, standard, REAL) == judged(
        from_files(tmp_path / "0", ([], [RAMP[:32]]), ([], [RAMP])), standard, REAL
    )


@pytest.mark.parametrize(("angle", "result"), [(0.19, "pass"), (0.21, "error"), (2.0, "error")])
def test_precision_tool_lists_outputs_whose_cosine_is_at_most_0_98(
    tmp_path: Path, angle: float, result: str
) -> None:
    golden = np.array([1.0, 0.0], np.float32)
    target = np.array([math.cos(angle), math.sin(angle)], np.float32)
    rows = from_files(tmp_path, ([target], [target]), ([golden], [golden]))
    assert judged(rows, "precision_tool", REAL) == ["pass", result]
    assert not rows[1].messages or "not above 0.98" in rows[1].messages[0]


@pytest.mark.parametrize("standard", ALL)
def test_what_one_side_has_is_unmatched(standard: str) -> None:
    rows = from_statistics(record([], [statistics()]), record([], []))
    assert judged(rows, standard, STATISTICS) == ["unmatched"]
    assert rows[0].messages == ["unmatched: only the target capture has it"]


@pytest.mark.parametrize("standard", ALL)
def test_an_operator_without_values_is_no_error(standard: str) -> None:
    rows: list[TensorRow] = []
    judge_rows(rows, STANDARDS[standard], REAL)
    assert rows == []


def test_values_in_another_order_are_at_least_a_warning(tmp_path: Path) -> None:
    rows = from_files(tmp_path, ([RAMP[::-1].copy()], []), ([RAMP], []))
    for standard, result in {"msprobe": "warning", "npu-hooks": "warning", "auto": "error"}.items():
        assert judged(rows, standard, REAL) == [result]
        assert any("the same values in another order" in each for each in rows[0].messages)


# --- msprobe: rules that look from inputs to outputs -----------------------------------------------


def test_msprobe_has_an_error_where_few_elements_of_an_output_are_near(tmp_path: Path) -> None:
    assert judged(outputs(tmp_path, off_by(0.002), RAMP), "msprobe", REAL) == ["pass", "error"]
    assert judged(outputs(tmp_path, off_by(0.0005), RAMP), "msprobe", REAL) == ["pass", "pass"]
    # The inputs already differ.
    rows = outputs(tmp_path, off_by(0.002), RAMP, brought=0.002)
    assert judged(rows, "msprobe", REAL) == ["pass", "pass"]


def test_msprobe_warns_where_the_cosine_falls(tmp_path: Path) -> None:
    half = RAMP.copy()
    half[:32] *= -1
    target = put(-1.0, 0, np.where(np.arange(4096).reshape(64, 64) % 2 == 0, half, RAMP))
    rows = outputs(tmp_path, target.astype(np.float32), RAMP)
    assert judged(rows, "msprobe", REAL) == ["pass", "warning"]
    assert "cosine" in rows[1].messages[0]


@pytest.mark.parametrize(
    ("input_norm", "output_norm", "result"),
    [
        (4.0, 4.0, "pass"),
        (4.0, 6.1, "error"),
        (4.0, 5.0, "warning"),
        (4.0, 4.2, "pass"),
        (4.5, 7.0, "pass"),
        (4.04, 4.5, "warning"),
        (4.04, 4.3, "pass"),
    ],
)
def test_msprobe_holds_norms_of_outputs_beside_those_of_inputs(
    input_norm: float, output_norm: float, result: str
) -> None:
    target = record([statistics(Norm=input_norm)], [statistics(Norm=output_norm)])
    rows = from_statistics(target, record([statistics()], [statistics()]))
    judged(rows, "msprobe", STATISTICS)
    assert rows[1].result == result


def test_msprobe_leaves_out_operators_whose_results_mean_nothing() -> None:
    target = record([statistics()], [statistics(Max="NaN")])
    golden = record([statistics()], [statistics()])
    for key, result in {"Torch.empty.0.forward": "pass", "Torch.exp.0.forward": "error"}.items():
        rows = from_statistics(target, golden, key=key)
        judged(rows, "msprobe", STATISTICS)
        assert rows[1].result == result


def test_msprobe_leaves_out_the_inputs_of_collectives() -> None:
    odd = statistics(Max="NaN")
    key = "Distributed._all_gather_base.0.forward"
    rows = from_statistics(record([odd], [odd]), record([statistics()], [statistics()]), key=key)
    assert judged(rows, "msprobe", STATISTICS) == ["pass", "error"]


@pytest.mark.parametrize(
    ("ours", "theirs", "result"),
    [
        ({"requires_grad": True}, {"requires_grad": False}, "error"),
        ({"requires_grad": True}, {}, "pass"),
        ({"dtype": "torch.float16"}, {}, "error"),
        ({"dtype": "Float32"}, {}, "pass"),
        ({"shape": [16]}, {}, "error"),
    ],
)
def test_msprobe_compares_what_tensors_are(
    ours: dict[str, Any], theirs: dict[str, Any], result: str
) -> None:
    target, golden = (record([statistics() | more], []) for more in (ours, theirs))
    assert judged(from_statistics(target, golden), "msprobe", STATISTICS) == [result]


def test_msprobe_compares_arguments_that_are_no_tensors() -> None:
    def of(value: Any) -> dict[str, Any]:
        return record([{"type": type(value).__name__, "value": value}], [])

    assert judged(from_statistics(of(1), of(2)), "msprobe", STATISTICS) == ["error"]
    assert judged(from_statistics(of("a"), of("a")), "msprobe", STATISTICS) == ["pass"]
    assert judged(from_statistics(of(1), of(1.5)), "msprobe", STATISTICS) == ["error"]


def test_digests_are_equal_or_an_error() -> None:
    element = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [3]}
    golden = record([], [element | {"md5": "00000001"}])
    for digest, expected in {"00000001": "pass", "00000002": "error", "": "warning"}.items():
        rows = from_statistics(record([], [element | {"md5": digest}]), golden, DIGESTS)
        assert judged(rows, "msprobe", DIGESTS) == [expected]


ONE_SIDED = {"Mean": math.nan, "Norm": math.nan}


@pytest.mark.parametrize("standard", ALL)
@pytest.mark.parametrize(("ours", "theirs"), [(ONE_SIDED, {}), ({}, ONE_SIDED)])
def test_nan_that_the_maximum_leaves_out_is_an_error_by_the_mean(
    standard: str, ours: dict[str, float], theirs: dict[str, float]
) -> None:
    sides = [record([], [statistics(**more)]) for more in (ours, theirs)]
    rows = from_statistics(*sides)
    assert judged(rows, standard, STATISTICS) == ["error"]
    assert "Mean is " in rows[0].messages[0]


@pytest.mark.parametrize("standard", ALL)
def test_null_against_a_tensor_is_no_silent_pass(standard: str) -> None:
    for sides in ([None, statistics()], [statistics(), None]):
        rows = from_statistics(*(record([], [side]) for side in sides))
        (result,) = judged(rows, standard, STATISTICS)
        assert result in ("warning", "error")
        assert rows[0].messages


@pytest.mark.parametrize("standard", ALL)
def test_tensors_without_statistics_on_both_sides_are_not_said_to_agree(standard: str) -> None:
    unknown = dict.fromkeys(("Max", "Min", "Mean", "Norm"))
    side = record([], [statistics("float8_e4m3fn", **unknown)])
    rows = from_statistics(side, side)
    assert judged(rows, standard, STATISTICS) == ["warning"]
    assert "nothing was compared" in rows[0].messages[0]


@pytest.mark.parametrize("standard", ALL)
def test_empty_tensors_pass_and_say_that_nothing_of_them_was_compared(standard: str) -> None:
    side = record([], [statistics(shape=(0, 3), **dict.fromkeys(("Max", "Min", "Mean", "Norm")))])
    rows = from_statistics(side, side)
    assert judged(rows, standard, STATISTICS) == ["pass"]
    assert rows[0].messages == [NO_ELEMENTS]


@pytest.mark.parametrize("standard", ["ptdbg", "megengine", "npu-hooks", "msprobe"])
def test_values_that_a_standard_does_not_judge_are_shown(standard: str) -> None:
    sides = [record([], [{"type": "str", "value": word}]) for word in ("mean", "sum")]
    rows = from_statistics(*sides)
    assert judged(rows, standard, STATISTICS) == ["pass"]
    assert rows[0].messages == ["the value is mean, in the golden capture sum"]


def test_msprobe_takes_a_loss_that_is_nan_for_an_error() -> None:
    sides = [record([], [{"type": "float", "value": value}]) for value in ("NaN", 1e-6)]
    assert judged(from_statistics(*sides), "msprobe", STATISTICS) == ["error"]
    assert judged(from_statistics(sides[1], sides[0]), "msprobe", STATISTICS) == ["pass"]


@pytest.mark.parametrize("standard", ALL)
def test_names_of_parameters_that_one_level_lacks_are_no_difference(standard: str) -> None:
    key = "Optimizer.AdamW.0.forward"
    sides = [
        record([{"names": [{"type": "str", "value": name}]}], []) for name in ("0", "a.weight", "b")
    ]
    rows = from_statistics(sides[0], sides[1], key=key)
    assert judged(rows, standard, STATISTICS) == ["pass"]
    other = from_statistics(sides[1], sides[2], key=key)
    assert judged(other, "auto", STATISTICS) == ["error"]


@pytest.mark.parametrize("norms", [(None, None), (2.0, math.inf), (math.inf, 2.0)])
def test_auto_bounds_the_distance_by_max_where_a_norm_is_not_known(norms: tuple[Any, Any]) -> None:
    sides = [
        record([], [statistics(Max=top, Min=-1.0, Norm=norm)])
        for top, norm in zip((10.0, 1.0), norms, strict=True)
    ]
    rows = from_statistics(*sides)
    assert judged(rows, "auto", STATISTICS) == ["error"]
    assert "relative L2 is at least " in rows[0].messages[0]


def test_auto_tells_numbers_apart_whose_difference_overflows() -> None:
    more = {"Mean": 0.0, "Norm": math.inf}
    sides = [
        record([], [statistics("float64", Max=top, Min=-1.7e308, **more)])
        for top in (1.7e308, -1.6e308)
    ]
    assert judged(from_statistics(*sides), "auto", STATISTICS) == ["error"]


def test_auto_finds_integers_that_float64_does_not_tell_apart(tmp_path: Path) -> None:
    target = np.array([1, 2**62, 3], np.int64)
    rows = from_files(tmp_path, ([], [target]), ([], [target + (target == 2**62)]))
    assert judged(rows, "auto", REAL) == ["error"]
    assert "1 of 3 elements differ, the furthest apart at [1]" in rows[0].messages[0]


@pytest.mark.parametrize("standard", ["megengine", "assert-close", "auto"])
def test_counts_of_complex_elements_are_of_their_parts(tmp_path: Path, standard: str) -> None:
    golden = RAMP + 1j * RAMP
    target = golden.copy()
    target[1, 6] = complex(math.nan, 1)
    rows = from_files(tmp_path, ([], [target]), ([], [golden]))
    assert judged(rows, standard, REAL) == ["error"]
    assert "1 of 8192 real and imaginary parts are NaN" in rows[0].messages[0]
    same = from_files(tmp_path, ([], [golden]), ([], [golden]))
    assert metric_cells(same[0])[4:] == ("1.0", "1.0")


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ({"Max": math.nan, "Min": math.nan}, {}, "Max and Min are Nan"),
        ({"Max": math.inf}, {"Min": -math.inf}, "Max and Min are inf"),
        ({"shape": (2, 8)}, {}, "the shapes differ"),
    ],
)
def test_ptdbg_is_not_blind_in_statistics(
    ours: dict[str, Any], theirs: dict[str, Any], said: str
) -> None:
    rows = from_statistics(*(record([], [statistics(**more)]) for more in (ours, theirs)))
    assert judged(rows, "ptdbg", STATISTICS) == ["error"]
    assert said in rows[0].messages[0]


def test_ptdbg_finds_infinities_of_other_signs(tmp_path: Path) -> None:
    assert judged(outputs(tmp_path, put(math.inf), put(-math.inf)), "ptdbg", REAL)[1] == "error"


# --- ptdbg, megengine, assert-close ------------------------------------------------------------------


def test_ptdbg_needs_a_low_cosine_and_a_large_error(tmp_path: Path) -> None:
    assert judged(outputs(tmp_path, off_by(0.5), RAMP), "ptdbg", REAL) == ["pass", "error"]
    assert judged(outputs(tmp_path, RAMP * 2, RAMP), "ptdbg", REAL) == ["pass", "pass"]
    small = RAMP * np.float32(1e-3)
    assert judged(outputs(tmp_path, off_by(0.5, small), small), "ptdbg", REAL) == ["pass", "pass"]


@pytest.mark.parametrize(("norm", "result"), [(7.9, "pass"), (8.1, "warning")])
def test_ptdbg_warns_where_a_statistic_is_off_by_half_of_the_larger_one(
    norm: float, result: str
) -> None:
    rows = from_statistics(record([], [statistics(Norm=norm)]), record([], [statistics()]))
    assert judged(rows, "ptdbg", STATISTICS) == [result]


@pytest.mark.parametrize(
    ("target", "golden", "result"),
    [(1000.9, 1000.0, "pass"), (1001.1, 1000.0, "error"), (0.0009, 0.0, "pass"), (0.0011, 0.0, "error")],
)  # fmt: skip
def test_megengine_scales_errors_by_the_larger_magnitude_or_1(
    tmp_path: Path, target: float, golden: float, result: str
) -> None:
    rows = outputs(tmp_path, put(target), put(golden))
    assert judged(rows, "megengine", REAL) == ["pass", result]


def test_megengine_has_an_error_for_nan_on_both_sides(tmp_path: Path) -> None:
    rows = outputs(tmp_path, put(math.nan), put(math.nan))
    assert judged(rows, "megengine", REAL) == ["pass", "error"]


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [("float32", 1.2e-6, 3e-5), ("float16", 4e-4, 3e-3), ("float64", 9e-8, 5e-7)],
)
def test_assert_close_has_the_tolerances_of_torch(
    tmp_path: Path, dtype: str, good: float, bad: float
) -> None:
    golden = (RAMP + 1).astype(dtype)
    close = outputs(tmp_path, (golden.astype(np.float64) * (1 + good)).astype(dtype), golden)
    assert judged(close, "assert-close", REAL) == ["pass", "pass"]
    far = outputs(tmp_path, (golden.astype(np.float64) * (1 + bad)).astype(dtype), golden)
    assert judged(far, "assert-close", REAL) == ["pass", "error"]


def test_assert_close_asks_for_one_dtype_and_no_nan(tmp_path: Path) -> None:
    rows = outputs(tmp_path, RAMP.astype(np.float64), RAMP)
    assert judged(rows, "assert-close", REAL) == ["pass", "error"]
    rows = outputs(tmp_path, put(math.nan), put(math.nan))
    assert judged(rows, "assert-close", REAL) == ["pass", "error"]


# --- auto ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "result"), [(1e-7, "pass"), (1e-6, "pass"), (1e-5, "error"), (1e-2, "error")]
)
def test_auto_has_an_error_where_rounding_does_not_explain_a_difference(
    tmp_path: Path, share: float, result: str
) -> None:
    assert judged(outputs(tmp_path, off_by(share), RAMP), "auto", REAL) == ["pass", result]


def test_auto_counts_by_the_coarser_dtype(tmp_path: Path) -> None:
    rows = outputs(tmp_path, RAMP.astype(np.float16), off_by(1e-4))
    assert judged(rows, "auto", REAL) == ["pass", "pass"]
    rows = outputs(tmp_path, off_by(1e-2).astype(np.float16), RAMP)
    assert judged(rows, "auto", REAL) == ["pass", "error"]


def test_auto_allows_more_where_more_is_summed(tmp_path: Path) -> None:
    """A product with an inner dimension of 65,536 rounds more than one of 64."""
    results = []
    for inner in (64, 65_536):
        a, b = np.ones((2, inner), np.float32), np.ones((2, inner), np.float32)
        golden = np.full((2, 2), 3.0, np.float32)
        rows = from_files(tmp_path, ([a, b], [off_by(2e-5, golden)]), ([a, b], [golden]))
        results.append(judged(rows, "auto", REAL)[-1])
    assert results == ["error", "pass"]


def test_auto_has_the_noise_of_golden_runs_for_a_floor(tmp_path: Path) -> None:
    rows = outputs(tmp_path, off_by(1e-4), RAMP)
    assert judged(rows, "auto", REAL, [None, 5e-5]) == ["pass", "pass"]
    assert judged(rows, "auto", REAL, [None, 1e-6]) == ["pass", "error"]
    assert "noise of golden runs" in rows[1].messages[0]


def test_auto_warns_of_what_the_inputs_explain(tmp_path: Path) -> None:
    rows = outputs(tmp_path, off_by(2e-5), RAMP, brought=1e-5)
    assert judged(rows, "auto", REAL) == ["warning", "warning"]
    assert "the inputs differ by 1" in rows[1].messages[0]
    rows = outputs(tmp_path, off_by(2e-4), RAMP, brought=1e-5)
    assert judged(rows, "auto", REAL) == ["warning", "error"]


def test_auto_has_an_error_where_half_of_the_digits_are_lost_whatever_explains_it(
    tmp_path: Path,
) -> None:
    rows = outputs(tmp_path, off_by(0.1), RAMP, brought=0.1)
    assert judged(rows, "auto", REAL) == ["error", "error"]


def test_auto_does_not_see_what_a_backward_pass_has_saved(tmp_path: Path) -> None:
    key = "Functional.cross_entropy.0.backward"
    rows = from_files(tmp_path, ([RAMP], [off_by(1e-4)]), ([RAMP], [RAMP]), key)
    assert judged(rows, "auto", REAL) == ["pass", "warning"]


@pytest.mark.parametrize(
    ("operator", "brought", "expected"),
    [
        ("gelu", 0.0, ["pass", "error"]),
        ("gelu", 1e-4, ["pass", "warning"]),
        ("digamma", 0.0, ["pass", "warning"]),
    ],
)
def test_auto_blames_a_backward_call_whose_forward_record_agrees(
    tmp_path: Path, operator: str, brought: float, expected: list[str]
) -> None:
    key = f"Functional.{operator}.0"
    saved = from_files(tmp_path, ([off_by(brought)], [RAMP]), ([RAMP], [RAMP]), f"{key}.forward")
    rows = from_files(tmp_path, ([RAMP], [off_by(1e-4)]), ([RAMP], [RAMP]), f"{key}.backward")
    for row in rows:
        row.saved = lambda: saved
    assert judged(rows, "auto", REAL) == expected


NORMED = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)
TINY = np.resize(np.float32([1e-6, -1e-6]), (64, 64))


@pytest.mark.parametrize(
    ("operator", "given", "gave", "expected"),
    [
        ("layer_norm", NORMED, NORMED, "pass"),
        ("layer_norm", NORMED * np.float32(1e4), NORMED, "error"),
        ("softmax", NORMED, RAMP, "pass"),
        ("softmax", NORMED, RAMP * np.float32(1e-6), "error"),
        ("tanh", NORMED, RAMP, "pass"),
        ("relu", NORMED, NORMED, "error"),
        ("linear", NORMED, NORMED, "pass"),
    ],
)
def test_auto_knows_the_terms_of_a_gradient_by_what_was_saved(
    tmp_path: Path, operator: str, given: Any, gave: Any, expected: str
) -> None:
    """A gradient of 1e-6 that is wrong by half is rounding where it is all that is left of large terms."""
    key = f"Functional.{operator}.0"
    saved = from_files(
        tmp_path, ([given, NORMED], [gave]), ([given, NORMED], [gave]), f"{key}.forward"
    )
    coming = NORMED * np.float32(2)
    rows = from_files(
        tmp_path, ([coming], [TINY * np.float32(1.1)]), ([coming], [TINY]), f"{key}.backward"
    )
    for row in rows:
        row.saved = lambda: saved
    assert judged(rows, "auto", REAL) == ["pass", expected]


@pytest.mark.parametrize(
    ("key", "shape", "expected"),
    [
        ("Functional.conv2d.0.backward", (64,), "pass"),
        ("Functional.conv2d.0.backward", (8, 8), "error"),
        ("Tensor.sum.0.forward", (64,), "pass"),
        ("Torch.amax.0.forward", (64,), "error"),
    ],
)
def test_auto_knows_that_terms_which_cancel_each_other_leave_rounding(
    tmp_path: Path, key: str, shape: tuple[int, ...], expected: str
) -> None:
    """The gradient of a bias before batch norm is 0 but for rounding, whatever comes in."""
    given = RAMP - RAMP.mean(axis=0)
    golden = np.resize(np.float32([1e-8, -1e-8]), shape)
    rows = from_files(tmp_path, ([given], [golden * np.float32(-0.5)]), ([given], [golden]), key)
    assert judged(rows, "auto", REAL) == ["pass", expected]


def test_auto_does_not_take_a_wrong_zero_for_terms_that_cancel(tmp_path: Path) -> None:
    key = "Functional.conv2d.0.backward"
    golden = RAMP.sum(axis=0)
    rows = from_files(tmp_path, ([RAMP], [golden * np.float32(1e-9)]), ([RAMP], [golden]), key)
    assert judged(rows, "auto", REAL) == ["pass", "error"]


def test_auto_expects_that_an_optimizer_makes_a_step_of_what_is_nearly_zero(tmp_path: Path) -> None:
    results = []
    for key in ("Optimizer.AdamW.0.forward", "Functional.silu.0.forward"):
        rows = from_files(tmp_path, ([RAMP], [off_by(5e-3)]), ([RAMP], [RAMP]), key)
        results.append(judged(rows, "auto", REAL))
    assert results == [["pass", "warning"], ["pass", "error"]]


def test_auto_expects_what_bfloat16_upstream_has_rounded(tmp_path: Path) -> None:
    rows = outputs(tmp_path, off_by(4e-3), RAMP, brought=4e-3)
    assert judged(rows, "auto", REAL) == ["warning", "warning"]
    judge_rows(rows, partial(judge_by_auto, unit=2.0**-24), REAL)
    assert [row.result for row in rows] == ["error", "error"]


def test_auto_has_an_error_beyond_measured_noise_even_if_the_inputs_explain_it(
    tmp_path: Path,
) -> None:
    rows = outputs(tmp_path, off_by(2e-5), RAMP, brought=1e-5)
    assert judged(rows, "auto", REAL, [1e-7, 1e-7]) == ["error", "error"]


def test_auto_asks_integers_to_be_equal_unless_floats_may_have_turned_over(tmp_path: Path) -> None:
    ours, theirs = np.array([1, 2, 3]), np.array([1, 2, 4])
    assert judged(outputs(tmp_path, ours, theirs), "auto", REAL) == ["pass", "error"]
    rows = outputs(tmp_path, ours, theirs, brought=1e-6)
    assert judged(rows, "auto", REAL)[1] == "warning"
    given = from_files(tmp_path, ([ours], []), ([theirs], []))
    assert judged(given, "auto", REAL) == ["warning"]
    assert judged(given, "auto", REAL, [0.0]) == ["error"]


def test_auto_has_an_error_for_floats_against_integers(tmp_path: Path) -> None:
    rows = outputs(tmp_path, RAMP, np.ones((64, 64), np.int64))
    assert judged(rows, "auto", REAL)[1] == "error"


def test_auto_knows_a_lower_bound_from_statistics() -> None:
    golden = record([statistics()], [statistics()])
    for change, result in {
        "Norm": ("error", 4.1),
        "Max": ("error", 2.1),
        "Mean": ("error", 0.52),
    }.items():
        rows = from_statistics(record([statistics()], [statistics(**{change: result[1]})]), golden)
        assert judged(rows, "auto", STATISTICS)[1] == result[0]
        assert "at least" in rows[1].messages[0]
    rows = from_statistics(record([statistics()], [statistics(Norm=4.0 + 4e-7)]), golden)
    assert judged(rows, "auto", STATISTICS)[1] == "pass"
    rows = from_statistics(record([statistics()], [statistics(Norm=4.0 + 4e-5)]), golden)
    assert judged(rows, "auto", STATISTICS)[1] == "warning"


def test_auto_has_values_below_the_normal_numbers_for_zero(tmp_path: Path) -> None:
    rows = outputs(tmp_path, np.zeros(3, np.float32), np.full(3, 1e-40, np.float32))
    assert judged(rows, "auto", REAL) == ["pass", "pass"]


def test_auto_compares_arguments_but_not_devices() -> None:
    def of(value: Any) -> dict[str, Any]:
        return record([{"type": type(value).__name__, "value": value}], [])

    assert judged(from_statistics(of("npu:0"), of("cuda:0")), "auto", STATISTICS) == ["pass"]
    assert judged(from_statistics(of(1), of(2)), "auto", STATISTICS) == ["error"]


def test_auto_warns_of_digests_of_floats() -> None:
    for dtype, result in {"float32": "warning", "int64": "error"}.items():
        element = {"type": "torch.Tensor", "dtype": f"torch.{dtype}", "shape": [3]}
        sides = [record([], [element | {"md5": digest}]) for digest in ("00000001", "00000002")]
        assert judged(from_statistics(*sides, DIGESTS), "auto", DIGESTS) == [result]


def test_auto_blames_no_copy_for_what_is_small_in_its_input(tmp_path: Path) -> None:
    """The difference of two rows cancels; the row that is taken of it is nothing but rounding."""
    golden = RAMP.copy()
    golden[3] = 1e-7 * RAMP[3]
    target = off_by(3e-7, RAMP)
    target[3] = -golden[3]
    for key, results in {
        "Tensor.__getitem__.0.forward": ["pass", "pass"],
        "Tensor.view.0.forward": ["pass", "pass"],
        "Torch.exp.0.forward": ["pass", "error"],
    }.items():
        rows = from_files(tmp_path, ([target], [target[3]]), ([golden], [golden[3]]), key=key)
        assert judged(rows, "auto", REAL) == results
    wrong = from_files(
        tmp_path, ([target], [RAMP[4]]), ([golden], [golden[3]]), key="Tensor.__getitem__.0.forward"
    )
    assert judged(wrong, "auto", REAL) == ["pass", "error"]
    zeros = np.zeros_like(RAMP[3])
    lost = from_files(
        tmp_path, ([target], [RAMP[4]]), ([golden], [zeros]), key="Tensor.__getitem__.0.forward"
    )
    assert judged(lost, "auto", REAL) == ["pass", "error"]


def test_auto_warns_of_a_sum_that_is_nothing_but_what_its_terms_are_off(tmp_path: Path) -> None:
    """The gradient of a bias before batch norm: its terms add up to 0 but for rounding."""
    signs = np.random.default_rng(1).standard_normal((64, 16)).astype(np.float32)
    gradient = signs - signs.mean(0)
    other = off_by(1e-5, gradient)
    key = "Functional.conv2d.0.backward"
    rows = from_files(tmp_path, ([other], [other.sum(0)]), ([gradient], [gradient.sum(0)]), key=key)
    assert judged(rows, "auto", REAL)[1] == "warning"
    wrong = other.sum(0) + 0.1
    rows = from_files(tmp_path, ([other], [wrong]), ([gradient], [gradient.sum(0)]), key=key)
    assert judged(rows, "auto", REAL)[1] == "error"


def test_auto_warns_of_a_difference_that_has_cancelled(tmp_path: Path) -> None:
    """It is as far off as its terms are, which is much of what is left of them."""
    ones = np.float32(1) + RAMP * np.float32(1e-3)
    off = ones + np.float32(4e-6) * np.sign(RAMP - np.float32(0.5))
    golden, wrong = ones - 1, (ones - 1) * np.float32(1.1)
    for target, given, expected in ((off - 1, off, "warning"), (wrong, ones, "error")):
        key = "Tensor.__sub__.0.forward"
        rows = from_files(tmp_path, ([given], [target]), ([ones], [golden]), key)
        assert judged(rows, "auto", REAL)[1] == expected


def test_auto_knows_that_float32_sums_are_made_in_a_half_type(tmp_path: Path) -> None:
    key, half = "Functional.layer_norm.0", RAMP.astype(np.float16)
    results = []
    for given in (half, RAMP):
        saved = from_files(tmp_path, ([given], [given]), ([given], [given]), f"{key}.forward")
        rows = from_files(tmp_path, ([given], [off_by(5e-4)]), ([given], [RAMP]), f"{key}.backward")
        for row in rows:
            row.saved = lambda saved=saved: saved
        results.append(judged(rows, "auto", REAL)[1])
    assert results == ["pass", "error"]


@pytest.mark.parametrize(
    ("key", "wrong", "expected"),
    [
        ("Torch._foreach_mul_.0.forward", TINY * np.float32(0.01), "pass"),
        ("Torch._foreach_mul_.0.forward", TINY * np.float32(1e3), "error"),
        ("Functional.linear.0.backward", TINY * np.float32(0.01), "error"),
    ],
)
def test_auto_judges_small_tensors_of_a_list_by_the_whole_list(
    tmp_path: Path, key: str, wrong: Any, expected: str
) -> None:
    """Gradients of biases before batch norm are nothing but rounding."""
    golden = np.float32(1e-2) * TINY
    rows = from_files(tmp_path, ([RAMP], [RAMP, golden + wrong]), ([RAMP], [RAMP, golden]), key)
    assert judged(rows, "auto", REAL) == ["pass", "pass", expected]


@pytest.mark.parametrize(("scale", "expected"), [(1e-8, "warning"), (1e-3, "error")])
def test_auto_warns_of_inputs_whose_difference_is_too_small_to_show(
    tmp_path: Path, scale: float, expected: str
) -> None:
    small = RAMP * np.float32(scale)
    rows = from_files(tmp_path, ([small * 2], [RAMP]), ([small], [RAMP]))
    assert judged(rows, "auto", REAL) == [expected, "pass"]


@pytest.mark.parametrize(
    ("key", "share", "expected"),
    [
        ("Module.0.Conv2d.forward.0", 2e-6, "warning"),
        ("Module.0.Conv2d.forward.0", 1e-3, "error"),
        ("Torch.mul.0.forward", 2e-6, "error"),
    ],
)
def test_auto_warns_of_a_module_that_adds_up_more_than_its_shapes_say(
    tmp_path: Path, key: str, share: float, expected: str
) -> None:
    rows = from_files(tmp_path, ([RAMP], [off_by(share)]), ([RAMP], [RAMP]), key)
    assert judged(rows, "auto", REAL) == ["pass", expected]


def test_auto_warns_of_an_angle_at_the_cut(tmp_path: Path) -> None:
    golden = np.where(RAMP > 0.5, np.float32(math.pi), np.float32(0.0))
    target = put(-math.pi, place=4000, array=golden)
    rows = from_files(
        tmp_path, ([off_by(1e-7)], [target]), ([RAMP], [golden]), key="Torch.angle.0.forward"
    )
    assert judged(rows, "auto", REAL) == ["pass", "warning"]
    rows = from_files(tmp_path, ([RAMP], [target]), ([RAMP], [golden]), key="Torch.angle.0.forward")
    assert judged(rows, "auto", REAL) == ["pass", "error"]
