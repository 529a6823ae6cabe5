"""A webhook sender: how leasestore is added to a running FastAPI and async SQLAlchemy product."""

from __future__ import annotations
