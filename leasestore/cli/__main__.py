"""`python -m leasestore.cli`, for a checkout that is not installed."""

from __future__ import annotations

from leasestore.cli import main

main()
