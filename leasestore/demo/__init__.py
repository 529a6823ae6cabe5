"""`leasestore demo`: a killed courier's order being recovered, by real processes.

A receiver, two couriers, a queue file. Nothing in here prints; `leasestore.cli.demo` does.
"""

from __future__ import annotations
