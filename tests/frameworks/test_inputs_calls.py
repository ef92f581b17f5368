"""What generated inputs mean to real operators: nothing raises that did not raise when it was captured."""

from typing import Any

import numpy as np
import pytest
from records import call, tensor

from ray_precheck.check.checker import Checker
from ray_precheck.dump.decode import decode_record
from ray_precheck.inputs.generate import build_call, generated_tensors
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import TaskPayload
from ray_precheck.schema.values import HostCall

pytestmark = pytest.mark.frameworks

UNKNOWN = {"low": None, "high": None}


def unknown(*shape: int, dtype: str = "float32", grad: bool = False) -> Any:
    """A tensor of which the dump has no statistics, as with summary mode md5."""
    found = tensor(*shape, dtype=dtype, grad=grad)
    return type(found)({**found, "Max": None, "Min": None, "Mean": None, "Norm": None})


def ints(*shape: int) -> Any:
    return unknown(*shape, dtype="int64")


def inputs(payload: TaskPayload, distribution: str = "recorded") -> HostCall:
    record = decode_record(payload.name, payload.forward, payload.backward)
    return build_call(record, generated_tensors(0, record, distribution))


CALLS = {
    "embedding": call("Functional.embedding", ints(5), unknown(7, 3)),
    "gather": call("Torch.gather", unknown(3, 9), 1, ints(3, 4)),
    "take_along_dim": call("Torch.take_along_dim", unknown(3, 9), ints(3, 4), 1),
    "index_select": call("Tensor.index_select", unknown(3, 9), 1, ints(4)),
    "index_add": call("Tensor.index_add", unknown(9, 3), 0, ints(4), unknown(4, 3)),
    "one_hot": call("Functional.one_hot", ints(5), 6),
    "scatter": call("Torch.scatter", unknown(3, 9), 1, ints(3, 4), unknown(3, 4)),
    "index_put": call("Torch.index_put", unknown(4, 5), [ints(6), ints(6)], unknown(6)),
    "subscript": call("Tensor.__getitem__", unknown(4, 5, 6), [slice(None), ints(3)]),
    "cross_entropy": call("Functional.cross_entropy", unknown(6, 10), ints(6)),
    "nll_loss": call("Functional.nll_loss", unknown(6, 10), ints(6)),
    "kl_div": call("Functional.kl_div", unknown(6, 10), unknown(6, 10), reduction="batchmean"),
    "binary_cross_entropy": call("Functional.binary_cross_entropy", unknown(6), unknown(6)),
    "ctc_loss": call(
        "Functional.ctc_loss", unknown(12, 2, 5), ints(2, 4), ints(2), ints(2), blank=0
    ),
    "embedding_bag": call("Functional.embedding_bag", ints(9), unknown(7, 3), ints(4)),
    "cholesky": call("Torch.linalg.cholesky", unknown(3, 6, 6)),
    "cholesky_solve": call("Torch.cholesky_solve", unknown(6, 2), unknown(6, 6)),
    "inv": call("Torch.linalg.inv", unknown(8, 8)),
    "solve": call("Torch.linalg.solve", unknown(8, 8), unknown(8, 2)),
    "searchsorted": call("Torch.searchsorted", unknown(9), unknown(4)),
    "bucketize": call("Torch.bucketize", unknown(4), unknown(9)),
    "log": call("Torch.log", unknown(50)),
    "acosh": call("Torch.acosh", unknown(50)),
    "quantile": call("Torch.quantile", unknown(50), unknown(3)),
    "floor_divide": call("Torch.floor_divide", ints(50), ints(50)),
    "repeat_interleave": call(
        "Torch.repeat_interleave", unknown(4, 2), ints(4), dim=0, output=unknown(9, 2)
    ),
    "batch_norm": call("Functional.batch_norm", unknown(4, 3), unknown(3), unknown(3)),
    "margin_ranking_loss": call(
        "Functional.margin_ranking_loss", unknown(5), unknown(5), unknown(5)
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_of_which_nothing_is_known_runs_on_both_sides(
    name: str, torch_checker: Checker
) -> None:
    result = torch_checker.check(CALLS[name])
    assert result.forward is not Verdict.SKIP, result.message
    assert "safer" not in result.message
    leaves = [check.metrics for check in result.checks if check.metrics is not None]
    # All NaN on both sides would be equal, and say nothing.
    assert all(metrics.left_out == 0 for metrics in leaves)


@pytest.mark.parametrize("name", ["gather", "cross_entropy", "cholesky", "ctc_loss"])
def test_without_role_these_calls_raise_or_say_nothing(name: str) -> None:
    """Hold that the calls above need their role: uniform numbers do not do."""
    import torch

    payload = CALLS[name]
    given = inputs(payload, "uniform")
    meant = inputs(payload)
    assert any(
        not np.array_equal(a.data, b.data)
        for a, b in zip(given.args, meant.args, strict=True)
        if hasattr(a, "data")
    )
    if name == "cholesky":
        with pytest.raises(torch.linalg.LinAlgError):
            torch.linalg.cholesky(torch.from_numpy(given.args[0].data))


def test_indices_that_are_written_through_are_distinct_on_every_line() -> None:
    index = inputs(CALLS["scatter"]).args[2].data
    assert all(len(set(line)) == 4 for line in index.tolist())
    first, second = (part.data for part in inputs(CALLS["index_put"]).args[1])
    assert len(set(zip(first.tolist(), second.tolist(), strict=True))) == 6


def test_a_recorded_range_of_indices_is_kept() -> None:
    recorded = tensor(1000, dtype="int64", low=4, high=6)
    index = inputs(call("Functional.embedding", recorded, unknown(9, 3))).args[0].data
    assert set(index.tolist()) == {4, 5, 6}


def test_ignored_targets_occur_as_often_as_their_mean_says() -> None:
    target = tensor(4000, dtype="int64", low=-100, high=9)
    target["Mean"] = 0.25 * -100 + 0.75 * 4.5
    payload = call("Functional.cross_entropy", unknown(4000, 10), target)
    found = inputs(payload).args[1].data
    assert set(found.tolist()) == {-100, *range(10)}
    assert (found == -100).mean() == pytest.approx(0.25, abs=0.03)


def test_attention_gets_a_causal_mask_where_its_statistics_fit(torch_checker: Checker) -> None:
    heads = unknown(1, 2, 8, 4)
    for dtype, low, high in (("bool", False, True), ("float32", float("-inf"), 0.0)):
        payload = call(
            "Functional.scaled_dot_product_attention",
            *(heads,) * 3,
            tensor(1, 1, 8, 8, dtype=dtype, low=low, high=high),
        )
        mask = inputs(payload).args[3].data
        seen = mask if dtype == "bool" else np.isfinite(mask)
        np.testing.assert_array_equal(seen[0, 0], np.tri(8, dtype=bool))
        result = torch_checker.check(payload)
        assert result.forward is Verdict.PASS
        assert result.checks[0].metrics is not None
        assert result.checks[0].metrics.left_out == 0


def test_the_sizes_of_packed_sequences_fit_their_rows(torch_checker: Checker) -> None:
    sizes = tensor(4, dtype="int64", low=1, high=3)
    weights = [tensor(15, 4), tensor(15, 5), tensor(15), tensor(15)]
    state = tensor(1, 3, 5)
    packed = call("Torch.gru", tensor(9, 4), sizes, state, weights, True, 1, 0.0, False, False)
    found = inputs(packed).args[1].data
    assert found[0] == 3
    assert found.sum() == 9
    assert (np.diff(found) <= 0).all()
    assert torch_checker.check(packed).forward is Verdict.PASS


def test_an_inverse_is_well_conditioned_and_a_cholesky_factor_is_exact(
    torch_checker: Checker,
) -> None:
    import torch

    for name, most in (("inv", 20.0), ("cholesky", 20.0)):
        matrix = torch.from_numpy(inputs(CALLS[name]).args[0].data)
        assert torch.linalg.cond(matrix).max() < most
        assert torch_checker.check(CALLS[name]).forward is Verdict.PASS
