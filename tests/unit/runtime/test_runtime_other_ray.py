"""The sentence about a cluster of another Ray or Python, from the text with which Ray refuses it."""

import socket

import pytest
import ray

from ray_precheck.private_parts import MATCH_LEVEL
from ray_precheck.runtime.places.cluster import version_refusal

pytestmark = pytest.mark.unit
# As Ray 2.60 writes it.
TEXT = """Version mismatch: The cluster was started with:
    Ray: {}
    Python: {}
This process on node 10.0.0.7 was started with:
    Ray: {}
    Python: {}
"""


def refused(*versions: str) -> str:
    return version_refusal("10.0.0.1:6379", TEXT.format(*versions))


def test_another_minor_version_of_python_is_told_with_both_and_what_to_do() -> None:
    assert refused("2.60.0", "3.10.13", "2.60.0", "3.11.7") == (
        "the head of the Ray cluster at --address 10.0.0.1:6379 has Ray 2.60.0 and Python 3.10.13, but"
        f" this node ({socket.gethostname()}) has Ray 2.60.0 and Python 3.11.7, and Ray needs the same"
        " minor version of Python on all nodes; run ray-precheck in an environment with Python 3.10, or"
        " start the cluster with Python 3.11 on all nodes"
    )


def test_another_ray_is_told_with_the_one_to_install() -> None:
    text = refused("2.55.0", "3.11.9", "2.60.0", "3.11.7")
    assert "has Ray 2.55.0 and Python 3.11.9, but this node" in text
    assert text.endswith(
        "and Ray needs the same Ray on all nodes; install ray==2.55.0 here, or start the cluster with"
        " Ray 2.60.0 on all nodes"
    )


def test_another_ray_and_another_python_are_one_environment_to_choose() -> None:
    assert refused("2.55.0", "3.10.13", "2.60.0", "3.11.7").endswith(
        "run ray-precheck in an environment with Python 3.10 and Ray 2.55.0, or start the cluster with"
        " Python 3.11 and Ray 2.60.0 on all nodes"
    )


def test_a_patch_release_is_refused_where_the_variable_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(MATCH_LEVEL, "patch")
    assert refused("2.60.0", "3.11.9", "2.60.0", "3.11.7").endswith(
        "Ray needs the same Python; set RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL=minor to take another"
        " patch release"
    )
    # A Ray that does not know the variable.
    monkeypatch.setenv(MATCH_LEVEL, "minor")
    assert refused("2.40.0", "3.11.9", "2.40.0", "3.11.7").endswith(
        "and Ray needs the same patch release of Python, as this Ray takes no other; run ray-precheck in"
        " an environment with Python 3.11.9"
    )


def test_a_text_of_another_form_is_shown_in_one_line() -> None:
    assert version_refusal("auto", "Version mismatch:\nGCS speaks 7\n") == (
        "the Ray cluster at --address auto refuses this process: Version mismatch: GCS speaks 7"
    )


def test_other_errors_are_none_of_this() -> None:
    assert version_refusal("auto", "Could not find any running Ray instance.") == ""


def test_the_installed_ray_still_writes_such_a_text() -> None:
    check = getattr(ray._private.utils, "check_version_info", None)
    if check is None:
        pytest.skip(f"ray {ray.__version__} has no check_version_info to ask")
    with pytest.raises(RuntimeError) as raised:
        check({"ray_version": "1.0.0", "python_version": "2.7.18"}, "node 10.0.0.7")
    text = version_refusal("auto", str(raised.value))
    assert "has Ray 1.0.0 and Python 2.7.18, but this node" in text
    assert f"has Ray {ray.__version__} and Python 3." in text
