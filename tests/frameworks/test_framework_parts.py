"""The parts that the built-in descriptors name are there."""

import pytest
from records import NEEDS_MINDSPORE

from ray_precheck.descriptors.descriptor import BUILT_IN, find_framework, load_part

pytestmark = pytest.mark.frameworks


# The parts of MSAdapter load MindSpore in a process of their own.
OWN_NEEDS = {"mindspore": NEEDS_MINDSPORE}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=OWN_NEEDS.get(name, ())) for name in BUILT_IN]
)
def test_every_part_that_a_descriptor_names_can_be_loaded(name: str) -> None:
    own = find_framework(name)
    assert own.script is not None
    parts = [own.backend, own.bench, *own.fused, *filter(None, [own.require]), own.script.writer]
    assert all(load_part(part) for part in parts)
    assert load_part(own.backend).framework == name
