"""Names in a dump are data: what is no operator is never looked up further, and never called."""

from typing import Any

import pytest
from records import call, ms_tensor, tensor

from ray_precheck.check.checker import Checker
from ray_precheck.schema.result import Outcome, Verdict

pytestmark = pytest.mark.frameworks

TORCH = """Torch.load Torch.save Torch.hub.load Torch.compile Torch.from_file Torch.ops.load_library
    Torch.set_default_device Torch.set_num_threads Torch.manual_seed Torch.os.system
    Torch.serialization.load Torch.__loader__.get_data Torch.__spec__.loader.exec_module
    Torch.utils.cpp_extension.load Functional.torch.load Functional.os.getpid VF.load
    Tensor.__reduce_ex__ Tensor.numpy Tensor.numpy.__globals__ Tensor.__class__ Tensor.mro
    Tensor.__subclasses__ Tensor.abs.__globals__ Tensor.set_ Tensor.resize_ Tensor.register_hook
    Tensor.share_memory_ Tensor.storage Tensor.apply_ Tensor.backward Tensor.data_ptr
    Tensor.__init__ Tensor._make_subclass Torch.empty Torch.empty_like NPU.npu_fusion Aten.add
    Distributed.all_reduce Mint.add Torch.no_such_operator""".split()
MINDSPORE = """Mint.__builtins__ Functional.vjp Functional.vmap Functional.jvp Functional.print_
    Tensor.__reduce_ex__ Tensor.numpy.__globals__ Tensor.asnumpy Tensor.register_hook
    Tensor.__class__ Tensor.__init__ Tensor.abs.__globals__ Tensor.assign_value Mint.os.system
    Mint._utils Mint.empty Distributed.all_reduce MintDistributed.all_reduce Torch.add
    Mint.no_such_operator""".split()
# Reachable from a module of operators by attributes; the first version called them.
REACHABLE = """Mint.__builtins__.clear Mint.__builtins__.get Mint.__loader__.get_data
    Mint.__loader__.set_data Mint.__spec__.loader.exec_module Tensor.mro Tensor.__subclasses__
    Mint.mindspore.train.serialization.os.system Mint.mindspore.load_checkpoint
    Functional.function.array_func.np.fromfile Mint.distributed.init_process_group
    Mint.add.__call__""".split()


class _Calls:
    """Stands in for running a call on either side, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, *_: Any) -> None:
        self.count += 1
        raise AssertionError("this must not be called")


@pytest.fixture
def calls() -> _Calls:
    return _Calls()


def _refuse_to_run(checker: Checker, calls: _Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker.device(), "forward", calls)
    monkeypatch.setattr(checker.bench, "forward", calls)


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("grads", [None, [tensor(3)]], ids=["forward", "backward"])
def test_a_name_that_is_no_operator_of_torch_is_skipped_and_never_called(
    torch_checker: Checker,
    calls: _Calls,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    grads: list[Any] | None,
) -> None:
    _refuse_to_run(torch_checker, calls, monkeypatch)
    result = torch_checker.check(call(name, "./somewhere", tensor(3), grads=grads))
    assert calls.count == 0
    assert (result.forward, result.outcome) == (Verdict.SKIP, Outcome.SKIPPED)
    assert result.message
    assert "ray_precheck failed" not in result.message


@pytest.mark.parametrize("name", [*MINDSPORE, *REACHABLE])
def test_a_name_that_is_no_operator_of_mindspore_is_skipped_and_never_called(
    mindspore_checker: Checker, calls: _Calls, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    _refuse_to_run(mindspore_checker, calls, monkeypatch)
    result = mindspore_checker.check(call(name, "./somewhere", ms_tensor(3)))
    assert calls.count == 0
    assert (result.forward, result.outcome) == (Verdict.SKIP, Outcome.SKIPPED)
    assert result.message
    assert "ray_precheck failed" not in result.message


def test_a_name_that_is_an_operator_is_called(
    torch_checker: Checker, calls: _Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the tests above watch is the way that every call takes."""
    _refuse_to_run(torch_checker, calls, monkeypatch)
    torch_checker.check(call("Torch.add", tensor(3), tensor(3)))
    assert calls.count > 0


@pytest.mark.parametrize("name", ["Mint.nn.functional.relu", "Mint.special.log1p"])
def test_an_operator_of_a_submodule_of_mint_is_checked(
    mindspore_checker: Checker, name: str
) -> None:
    result = mindspore_checker.check(call(name, ms_tensor(3, low=0.5)))
    assert result.forward is Verdict.PASS, result.message
