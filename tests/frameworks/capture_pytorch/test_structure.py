"""What a capture tells of the structure of values, and the inputs that are made of it."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from ray_precheck.dump.decode import decode_record
from ray_precheck.inputs.generate import build_call, generated_tensors
from ray_precheck.inputs.roles.rowwise import MASKED_SCORE
from ray_precheck.schema.values import HostTensor

pytestmark = pytest.mark.frameworks

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def made_of(
    records: dict[str, Any], key: str, path: str
) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    """Return what the record tells of an argument, and the argument that is generated."""
    found: Any = records[f"{key}.forward"]
    for part in path.split("."):
        found = found[int(part) if isinstance(found, list) else part]
    record = decode_record(key, json.dumps(records[f"{key}.forward"]).encode(), None, "pytorch")
    call = build_call(record, generated_tensors(3, record, "recorded"))
    first, *rest = path.removeprefix("input_").split(".")
    made: Any = getattr(call, first)
    for part in rest:
        made = made[part if isinstance(made, dict) else int(part)]
    assert isinstance(made, HostTensor)
    return found.get("structure", {}), made.data


def counts(lines: np.ndarray[Any, Any]) -> dict[str, int]:
    """Return how many rows are zero, masked and otherwise equal."""
    values = lines[(lines == lines[:, :1]).all(1), 0]
    zero, masked = int((values == 0).sum()), int((values <= MASKED_SCORE).sum())
    told = {"zero_rows": zero, "masked_rows": masked, "equal_rows": len(values) - zero - masked}
    return {name: count for name, count in told.items() if count}


def test_indices_are_alike_as_often_as_they_were(captured: Any) -> None:
    index, table = torch.tensor([5, 900, 5, 7, 900, 5, 11, 0]), torch.randn(1000, 4)
    source = torch.randn(8, 4)

    def action() -> None:
        functional.embedding(index, table)
        table[index, torch.zeros(8, dtype=torch.int64)]
        torch.gather(table, 0, index=index.reshape(2, 4))
        torch.index_add(table, 0, index, source)
        torch.index_put(table, (index,), source, accumulate=True)
        functional.embedding(torch.arange(8), table)
        functional.cross_entropy(source, torch.full((8,), 3))
        torch.index_copy(table, 0, torch.arange(8), source)

    records = captured(action)
    for key, path, distinct in (
        ("Functional.embedding.0", "input_args.0", 5),
        ("Tensor.__getitem__.0", "input_args.1.0", 5),
        ("Tensor.__getitem__.0", "input_args.1.1", 1),
        ("Torch.gather.0", "input_kwargs.index", 5),
        ("Torch.index_add.0", "input_args.2", 5),
        ("Torch.index_put.0", "input_args.1.0", 5),
        ("Functional.cross_entropy.0", "input_args.1", 1),
    ):
        structure, made = made_of(records, key, path)
        assert structure == {"distinct": distinct}
        assert len(np.unique(made)) == distinct
    assert made_of(records, "Functional.embedding.1", "input_args.0")[0] == {}
    structure, made = made_of(records, "Torch.index_copy.0", "input_args.2")
    assert structure == {}  # of two writes to one place either may be the last
    assert len(np.unique(made)) == 8


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_zero_masked_and_equal_as_often_as_they_were(
    captured: Any, dtype: torch.dtype
) -> None:
    x = torch.randn(16, 32).to(dtype)
    x[[3, 8]], x[5] = 0, 2
    scores = torch.randn(2, 16, 32).to(dtype)
    scores[0, 4:7], scores[1, 2] = torch.finfo(dtype).min, -math.inf
    image = torch.randn(4, 8, 3, 3).to(dtype)
    image[:, [2, 5]] = 0
    mask = torch.ones(16, 16, dtype=torch.bool).tril()
    mask[4] = False
    query = torch.randn(1, 2, 16, 8).to(dtype)

    def action() -> None:
        functional.layer_norm(x, [32])
        functional.softmax(scores, -1)
        functional.batch_norm(image, None, None, training=True)
        functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)

    records = captured(action)
    structure, made = made_of(records, "Functional.layer_norm.0", "input_args.0")
    assert structure == {"rows": 16, "zero_rows": 2, "equal_rows": 1}
    assert counts(made) == {"zero_rows": 2, "equal_rows": 1}
    structure, made = made_of(records, "Functional.softmax.0", "input_args.0")
    assert structure == {"rows": 32, "masked_rows": 4}
    assert counts(made.reshape(32, 32)) == {"masked_rows": 4}
    structure, made = made_of(records, "Functional.batch_norm.0", "input_args.0")
    assert structure == {"rows": 8, "zero_rows": 2}
    assert counts(np.moveaxis(made, 1, 0).reshape(8, -1)) == {"zero_rows": 2}
    structure, made = made_of(
        records, "Functional.scaled_dot_product_attention.0", "input_kwargs.attn_mask"
    )
    assert structure == {"rows": 16, "zero_rows": 1, "equal_rows": 1}
    assert counts(made) == {"zero_rows": 1, "equal_rows": 1}


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_have_the_means_and_the_deviation_that_they_had(
    captured: Any, dtype: torch.dtype
) -> None:
    noise = torch.randn(16, 8, 6, 6) / 10
    image = (noise + torch.linspace(-9, 20, 8)[:, None, None]).to(dtype)
    records = captured(lambda: functional.batch_norm(image, None, None, training=True))
    structure, made = made_of(records, "Functional.batch_norm.0", "input_args.0")
    assert structure.keys() == {"rows", "row_means", "row_deviation"}
    told = records["Functional.batch_norm.0.forward"]["input_args"][0]
    wide = made.astype(np.float64)
    means = wide.mean(axis=(0, 2, 3))
    assert np.allclose([means.min(), means.max()], [-9, 20], atol=0.2)
    assert math.isclose(float(np.sqrt(wide.var(axis=(0, 2, 3)).mean())), 0.1, rel_tol=0.3)
    assert (wide.min(), wide.max()) == (told["Min"], told["Max"])
    assert math.isclose(wide.mean(), told["Mean"], abs_tol=3)
    assert math.isclose(np.linalg.norm(wide), told["Norm"], rel_tol=0.2)
    plain = captured(lambda: functional.batch_norm(noise, None, None, training=True))
    assert "structure" not in plain["Functional.batch_norm.0.forward"]["input_args"][0]


def test_numbers_that_are_put_in_order_are_equal_as_often_as_they_were(captured: Any) -> None:
    x = torch.randn(16, 32).round()
    records = captured(lambda: (torch.topk(x, 3), torch.topk(torch.randn(16, 32), 3)))
    structure, made = made_of(records, "Torch.topk.0", "input_args.0")
    assert structure == {"distinct": len(x.unique())}
    assert len(np.unique(made)) == len(x.unique())
    assert made_of(records, "Torch.topk.1", "input_args.0")[0] == {}


@pytest.mark.parametrize("dtype", DTYPES)
def test_as_many_numbers_are_nan_as_were(captured: Any, dtype: torch.dtype) -> None:
    x = torch.randn(16, 32).to(dtype)
    x.view(-1)[[3, 50, 99]] = math.nan
    records = captured(lambda: torch.relu(x))
    structure, made = made_of(records, "Torch.relu.0", "input_args.0")
    assert structure == {"nan": 3}
    wide, finite = made.astype(np.float64), x[~x.isnan()]
    assert int(np.isnan(wide).sum()) == 3
    assert -9 < float(finite.min()) <= np.nanmin(wide) < -1
    assert 1 < np.nanmax(wide) <= float(finite.max())


def test_odd_tensors_are_looked_at_without_harm(captured: Any) -> None:
    transposed = torch.zeros(6, 4).t()

    def action() -> None:
        functional.softmax(transposed, -1)
        functional.layer_norm(torch.zeros(0, 4), [4])
        functional.softmax(torch.tensor(1.0), -1)
        functional.layer_norm(torch.zeros(1).expand(3, 4), [4])
        functional.one_hot(torch.tensor([], dtype=torch.int64), 3)
        torch.topk(torch.tensor([1 + 0j]).abs(), 1)
        functional.batch_norm(torch.zeros(3, 4, requires_grad=True), None, None, training=True)
        torch.bincount(torch.tensor([7, 7], dtype=torch.uint8))
        torch.argmax(torch.zeros(2, 3, dtype=torch.float64))

    records = captured(action)
    found = {
        key: argument["structure"]
        for key, record in records.items()
        for argument in record["input_args"]
        if isinstance(argument, dict) and "structure" in argument
    }
    assert found == {
        "Functional.softmax.0.forward": {"rows": 4, "zero_rows": 4},
        "Functional.layer_norm.1.forward": {"rows": 3, "zero_rows": 3},
        "Functional.batch_norm.0.forward": {"rows": 4, "zero_rows": 4},
        "Torch.bincount.0.forward": {"distinct": 1},
        "Torch.argmax.0.forward": {"distinct": 1},
    }
