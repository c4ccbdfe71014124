"""How long a process may take to answer before it counts as lost, though it has not died: it hangs.

A process that is stopped or dead-locked looks like one that is slow, so what is slow here is measured: by the iterations before.
"""

from collections.abc import Collection
from statistics import median

REMEMBERED = 101
"""Iterations of which the median is taken."""
_TIMES_MEDIAN, _TIMES_AT_FIRST = 5, 10


def hang_limit_s(least_s: float, durations_s: Collection[float]) -> float:
    """Seconds to wait for an answer: `least_s`, or five times the median of the iterations so far where that is longer. Before the first
    iteration is over nobody knows how long one takes (data are read, kernels compiled): then ten times `least_s`.
    """
    return max(least_s, _TIMES_MEDIAN * median(durations_s)) if durations_s else _TIMES_AT_FIRST * least_s
