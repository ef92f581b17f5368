"""Runs the squares: in the process of a test, or as a script on a node of a `Network`.

`squares_run.py ADDRESS FOLDER MACHINES MARKS` uses a logical device for each machine. Numbers are slow
until the folder MARKS has a file `go`, and leave a mark of their machine there.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from squares import TABLES, Opener, Squares
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
# A minute in all on three machines, which is time enough to kill one of them.
PAUSE_S = 0.3


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


def main() -> None:
    address, folder, machines, marks = sys.argv[1:]
    files = start_run(Path(folder), STAMP, RunSettings({}), TABLES)
    begin_together()
    job = Squares(COUNT, Opener(CRASHING, pause_s=PAUSE_S, marks=marks))
    with open_cluster(address, debug=False) as nodes, hold_files(files) as held:
        actors = RayActors(Roster(nodes, "", print))
        assert run_squares(job, actors, held, set(), int(machines), show=True)


if __name__ == "__main__":
    main()
