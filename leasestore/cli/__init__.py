"""The command `leasestore`: arguments in, text out. One file a command; `commands` collects
them. This module imports nothing of the extra `cli`, so that it can say when that is missing."""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point."""
    try:
        from leasestore.cli.commands import leasestore
    except ModuleNotFoundError as error:
        name = str(error.name).partition(".")[0]
        if name not in ("click", "rich"):
            raise
        remedy = "pip install 'leasestore[cli]', or in a checkout pip install '.[cli]'"
        sys.stderr.write(f"{name} is missing: {remedy}\n")
        sys.exit(2)
    leasestore(prog_name="leasestore")
