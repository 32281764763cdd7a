"""A PgBouncer in transaction mode before the tests' database, for one test."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
from django.db import connection

from tests.children import wait_until

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
POOL = 5


@contextlib.contextmanager
def pgbouncer(name: str) -> Iterator[str]:
    """Start one with a pool of five; the address of the database behind it."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        config = Path(folder) / "pgbouncer.ini"
        config.write_text(configuration(name, port))
        process = subprocess.Popen(
            [*as_its_user(folder, config), str(PROGRAM), str(config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            address = f"postgresql://tests@127.0.0.1:{port}/{name}"
            wait_until(lambda: answers(address))
            yield address
        finally:
            process.terminate()
            process.wait(10)


def configuration(name: str, port: int) -> str:
    given = connection.settings_dict
    server = {
        "host": given["HOST"],
        "port": given["PORT"] or 5432,
        "user": given["USER"],
        "password": given["PASSWORD"],
    }
    described = " ".join(f"{key}='{value}'" for key, value in server.items() if value)
    return f"""[databases]
{name} = {described}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {POOL}
max_client_conn = 200
ignore_startup_parameters = extra_float_digits,options
"""


def as_its_user(folder: str, config: Path) -> list[str]:
    """PgBouncer refuses to run as root: then it runs as who owns the server's socket."""
    if os.geteuid() != 0:
        return []
    host = Path(str(connection.settings_dict["HOST"]))
    owner = host.stat().st_uid if host.is_absolute() else 0
    user = pwd.getpwuid(owner or pwd.getpwnam("nobody").pw_uid)
    for path in (folder, config):
        os.chown(path, user.pw_uid, user.pw_gid)
    return ["runuser", "-u", user.pw_name, "--"]


def answers(address: str) -> bool:
    try:
        psycopg.connect(address, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True
