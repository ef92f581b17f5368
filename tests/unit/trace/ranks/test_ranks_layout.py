"""Axes that a user names, and groups that are inferred."""

import pytest

from ray_precheck.errors import UsageError
from ray_precheck.trace.items import bare_name
from ray_precheck.trace.ranks.layout import layout_of_axes, parse_layout


def test_the_leftmost_axis_varies_slowest() -> None:
    layout = layout_of_axes(parse_layout("dp=2, tp=2"), range(4))
    groups = [(group.kind, group.ranks) for group in layout.groups]
    assert groups == [("dp", (0, 2)), ("dp", (1, 3)), ("tp", (0, 1)), ("tp", (2, 3))]


@pytest.mark.parametrize("text", ["dp", "dp=0", "dp=2,dp=2", "=2", "dp=x"])
def test_what_is_no_axis_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--layout"):
        parse_layout(text)


def test_axes_that_are_fewer_than_the_ranks_are_refused() -> None:
    with pytest.raises(UsageError, match="rank 4"):
        layout_of_axes(parse_layout("dp=2,tp=2"), range(5))


def test_names_of_parameters_lose_what_wrappers_put_into_them() -> None:
    name = "module._orig_mod.layers.0._checkpoint_wrapped_module.mlp.module_list.weight"
    assert bare_name(name) == "layers.0.mlp.module_list.weight"
