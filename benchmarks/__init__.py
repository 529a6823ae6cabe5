"""What leasestore costs: measured against the same contract written by hand, and against peers.

    python -m benchmarks --help

Contenders take turns, round by round, in one process (or one group of processes), so that what
else the machine does meets them alike. Every figure is a median with the middle half of the
rounds; every ratio is the median of the ratios within each round.
"""

from __future__ import annotations
