"""Names of workers."""

from __future__ import annotations

import os
import re
import socket
from uuid import uuid4

_HOST_LENGTH = 40


def owner_of_this_run() -> str:
    """Host, process and a random part, for a ticket's `owner`: tells workers apart also where a
    process has several, was forked, or has the number of one that is gone."""
    host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:_HOST_LENGTH]
    return f"{host or 'host'}-{os.getpid()}-{uuid4().hex[:8]}"
