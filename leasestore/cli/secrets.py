"""Passwords stay out of what the commands show."""

from __future__ import annotations

import re

_PASSWORD = re.compile(r"""(://[^\s:/@'"]*):[^\s/'"]*@""")


def masked(text: str) -> str:
    """The same with `***` for the password of every URL in it, as SQLAlchemy shows its own."""
    return _PASSWORD.sub(r"\1:***@", text)
