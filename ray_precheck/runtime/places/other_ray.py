"""A cluster of another Ray or another Python, which Ray does not let this process join.

Comes in: the text of the error that `ray.init` raises. Goes out: a sentence for people, "" where the
text is of something else. Called by `cluster`.
"""

import os
import re
import socket

# Which difference of Python's versions Ray refuses: "patch" (its default) or "minor" (ours).
MATCH_LEVEL = "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL"
# Ray's text has a pair of these lines for the cluster, then a pair for this process.
_VERSIONS = re.compile(r"Ray: *(\S+)\s+Python: *(\S+)")


def version_refusal(address: str, text: str) -> str:
    """Return why a cluster of other versions cannot be joined, with both versions of each.

    `text` is Ray's own; "" is returned where it does not tell of other versions.
    """
    if "Version mismatch" not in text:
        return ""
    found = _VERSIONS.findall(text)
    if len(found) != 2:
        return (
            f"the Ray cluster at --address {address} refuses this process: {' '.join(text.split())}"
        )
    (ray, python), (own_ray, own_python) = found
    theirs, own = _minor(python), _minor(own_python)
    if ray != own_ray:
        rule = "the same Ray on all nodes"
        remedy = f"install ray=={ray} here, or start the cluster with Ray {own_ray} on all nodes"
        if theirs != own:
            rule = "the same Ray and the same minor version of Python on all nodes"
            remedy = (
                f"run ray-precheck in an environment with Python {theirs} and Ray {ray}, or start the"
                f" cluster with Python {own} and Ray {own_ray} on all nodes"
            )
    elif theirs != own:
        rule = "the same minor version of Python on all nodes"
        remedy = (
            f"run ray-precheck in an environment with Python {theirs}, or start the cluster with"
            f" Python {own} on all nodes"
        )
    else:
        rule, remedy = "the same Python", f"set {MATCH_LEVEL}=minor to take another patch release"
        if os.environ.get(MATCH_LEVEL) == "minor":  # Ray 2.40, for one, does not read it.
            rule = "the same patch release of Python, as this Ray takes no other"
            remedy = f"run ray-precheck in an environment with Python {python}"
    return (
        f"the head of the Ray cluster at --address {address} has Ray {ray} and Python {python}, but"
        f" this node ({socket.gethostname()}) has Ray {own_ray} and Python {own_python}, and Ray needs"
        f" {rule}; {remedy}"
    )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
