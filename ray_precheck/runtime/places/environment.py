"""The environment variables that Ray reads when it is imported, and the one that passes --debug on.

Called by the session before the first import of Ray; what is for Ray has no effect on a Ray that is
already imported.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ray_precheck.private_parts import DEBUG
from ray_precheck.runtime.places.other_ray import MATCH_LEVEL

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray reports the failed start of a worker that is no longer wanted; we hide that.
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    # We report dead workers and nodes in one line each, so Ray's pages about them are hidden.
    "RAY_DEDUP_LOGS_SKIP_REGEX": "A worker died or was killed|The node with node id|Raylet is terminated",
}
# The switch by which Ray takes the loopback address for its node, so that nothing listens on
# another one. (`_node_ip_address="127.0.0.1"` is translated back to the network's address.)
_LOOPBACK_ONLY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
# Ray itself refuses a cluster with another patch release of Python; what we send is read by any of them.
_PATCH_RELEASES = {MATCH_LEVEL: "minor"}
# Ray runs its workers at nice 15, after everything else on the machine.
_PRIORITY = {"RAY_worker_niceness": "0"}


def prepare_environment(*, own_cluster: bool, debug: bool) -> None:
    """Set the variables that Ray reads when it is imported, but for those that the user has set."""
    for name, value in {
        **({} if debug else _QUIET),
        **_PATCH_RELEASES,
        **({**_LOOPBACK_ONLY, **_PRIORITY} if own_cluster else {}),
    }.items():
        os.environ.setdefault(name, value)


@contextmanager
def passed_on(*, debug: bool) -> Iterator[None]:
    """Let this process and those that it starts tell what --debug tells, until the block ends."""
    if not debug or DEBUG in os.environ:
        yield
        return
    os.environ[DEBUG] = "1"
    try:
        yield
    finally:
        os.environ.pop(DEBUG, None)
