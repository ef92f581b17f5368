"""How the time of an action grows with its input: what is quadratic is told from what is linear.

Comes in: what makes the action for a size. Goes out: a ratio of processor times, which holds on a slow
and on a busy machine as well, as seconds would not.
"""

import time
from collections.abc import Callable

TIMES = 8
# Linear time grows by TIMES, quadratic time by TIMES squared: the limit is between the two.
AT_MOST = 3 * TIMES
_TRIES = 5

Action = Callable[[], object]


def growth(prepare: Callable[[int], Action], size: int, times: int = TIMES) -> float:
    """Return how many times as long the action for `times` the size takes.

    `prepare` makes the action for a size; its own time does not count. Of several tries the quickest
    counts on both sides, as whatever else the machine does only adds time; where a try shows that the
    growth is linear, no other follows.
    """
    small, large = prepare(size), prepare(size * times)
    least_small = min(_seconds(small) for _ in range(3))
    least_large = _seconds(large)
    for _ in range(_TRIES - 1):
        if least_large < AT_MOST * least_small:
            break
        least_small = min(least_small, _seconds(small))
        least_large = min(least_large, _seconds(large))
    return least_large / least_small


def _seconds(action: Action) -> float:
    """Return the processor time that an action takes."""
    begin = time.process_time()
    action()
    return time.process_time() - begin
