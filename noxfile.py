"""`nox` runs the whole suite on every supported Python and both lines of SQLAlchemy."""

from __future__ import annotations

import nox

nox.options.default_venv_backend = "virtualenv"

PYTHONS = ["3.11", "3.12", "3.13"]
SQLALCHEMY = {"2.0": "sqlalchemy>=2.0.40,<2.1", "2.1": "sqlalchemy>=2.1,<2.2"}


@nox.session(python=PYTHONS)
@nox.parametrize("sqlalchemy", list(SQLALCHEMY))
def tests(session: nox.Session, sqlalchemy: str) -> None:
    """The tests; arguments after `--` go to pytest."""
    session.install("-e", ".[test]", SQLALCHEMY[sqlalchemy])
    session.run("python", "-m", "pytest", *session.posargs)
