"""fp8 casts: float8_e4m3fn and float8_e5m2, whose statistics a dump lacks."""

from typing import Any

import numpy as np
import pytest
from records import (
    assert_passes,
    call,
    dtypes,
    leaf,
    null,
    replace_kernel,
    shapes,
    tensor,
    torch_dtype,
)

from ray_precheck.check.checker import Checker
from ray_precheck.schema.result import Verdict

pytestmark = pytest.mark.frameworks

PASS, NONE, ERROR = Verdict.PASS, Verdict.NONE, Verdict.ERROR


class TestFp8:
    @pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
    @pytest.mark.parametrize("wide", ["float32", "bfloat16", "float16"])
    def test_casts_to_and_from_it_pass(self, torch_checker: Checker, name: str, wide: str) -> None:
        to = call("Tensor.to", tensor(4, 6, dtype=wide), torch_dtype(name))
        back = call("Tensor.to", null(4, 6, dtype=name), torch_dtype(wide))
        for payload, tested in ((to, name), (back, wide)):
            result = torch_checker.check(payload)
            assert_passes(result, payload)
            assert dtypes(result) == [("torch.float64", f"torch.{tested}")]

    @pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
    def test_its_gradient_passes(self, torch_checker: Checker, name: str) -> None:
        payload = call("Tensor.to", leaf(4, 6), torch_dtype(name), grads=[null(4, 6, dtype=name)])
        assert_passes(torch_checker.check(payload), payload)

    @pytest.mark.parametrize(
        ("name", "high"), [("float8_e4m3fn", 1000.0), ("float8_e5m2", 100_000.0)]
    )
    def test_what_is_beyond_its_largest_number_may_saturate_or_not(
        self,
        torch_checker: Checker,
        monkeypatch: pytest.MonkeyPatch,
        name: str,
        high: float,
    ) -> None:
        import ml_dtypes
        import torch

        payload = call("Tensor.to", tensor(50, low=-high, high=high), torch_dtype(name))
        assert_passes(torch_checker.check(payload), payload)

        def as_ml_dtypes_casts(x: Any, _: Any) -> Any:
            with np.errstate(over="ignore", invalid="ignore"):
                values = x.numpy().astype(getattr(ml_dtypes, name))
            return torch.from_numpy(values.view(np.uint8)).view(getattr(torch, name))

        replace_kernel(monkeypatch, torch_checker.device(), lambda _: as_ml_dtypes_casts)
        result = torch_checker.check(payload)
        assert result.forward is PASS

    def test_a_cast_that_rounds_wrongly_is_found(
        self, torch_checker: Checker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        payload = call("Tensor.to", tensor(50), torch_dtype("float8_e5m2"))
        replace_kernel(
            monkeypatch, torch_checker.device(), lambda to: lambda x, name: to(x * 1.2, name)
        )
        assert torch_checker.check(payload).forward is ERROR

    def test_rows_are_moved_as_they_are(self, torch_checker: Checker) -> None:
        payload = call("Torch.cat", [null(4, 6, dtype="float8_e4m3fn")] * 2)
        result = torch_checker.check(payload)
        assert_passes(result, payload)
        assert shapes(result) == ["(8, 6)"]
