"""Runs the squares: in the process of a test, or as a script on a node of a `Network`.

`squares_run.py ADDRESS FOLDER MACHINES` uses a logical device for each machine. Once rows of all of
them are on the disk it prints "all are at work" and waits for a line; the workers go on with their next
batches. What the run says of nodes goes to standard error.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from squares import TABLES, Squares
from together import begin_together

from ray_precheck.runtime.actors import Actors
from ray_precheck.runtime.driver import DriveOptions, Driver
from ray_precheck.runtime.places.cluster import Roster, open_cluster
from ray_precheck.runtime.places.placement import DeviceRequest, place_slots
from ray_precheck.runtime.progress import Progress
from ray_precheck.runtime.ray_actors import RayActors
from ray_precheck.store.resume import hold_files, start_run
from ray_precheck.store.settings import RunSettings
from ray_precheck.store.tables import RunFiles

STAMP = "20260101000000"
COUNT = 600
# Not in the first batches: a worker that replaces its process has nothing to lose.
CRASHING = frozenset([400, 500, 590])
# A batch takes longer than it takes to kill its node.
PAUSE_S = 0.01
AT_WORK = b"all are at work"


def run_squares(
    job: Squares,
    actors: Actors,
    files: RunFiles,
    done: set[str],
    devices: int,
    stops_at: Callable[[int], bool] = lambda rows: False,
    *,
    show: bool = False,
) -> bool:
    """Run what is not done on so many logical devices; `stops_at` is asked whether to stop at a number
    of rows that are on the disk.
    """
    progress = Progress(len(job.tasks), len(done), show=show)
    request = DeviceRequest("cpu", ids=tuple(range(devices)))
    left = [task for task in job.tasks if task.name not in done]
    options = DriveOptions(timeout_s=3.0)
    slots = place_slots(request, actors.nodes())

    def stop_requested() -> bool:
        return stops_at(sum(progress._counts.values()))

    driver = Driver(job, actors, request, slots, files, stop_requested, options)
    driver.launch()
    return driver.run(left, (), progress)


def machines_in(timeline: Path) -> int:
    """Return of how many machines there are records in a timeline, which may not be there yet."""
    return timeline.read_bytes().count(b"process_name") if timeline.exists() else 0


def main() -> None:
    address, folder, machines = sys.argv[1:]
    files = start_run(Path(folder), STAMP, RunSettings({}), TABLES)
    waited = False

    def wait_for_all(rows: int) -> bool:
        nonlocal waited
        if rows and not waited and machines_in(files.timeline) == int(machines):
            waited = True
            print(AT_WORK.decode(), flush=True)
            sys.stdin.readline()
        return False

    begin_together()
    job = Squares(COUNT, CRASHING, frozenset(), PAUSE_S)
    with open_cluster(address, debug=False) as nodes, hold_files(files) as held:
        actors = RayActors(Roster(nodes, "", print))
        assert run_squares(job, actors, held, set(), int(machines), wait_for_all, show=True)


if __name__ == "__main__":
    main()
