#!/usr/bin/env python3
"""Make the database at the first start, then become the server.

Environment, as the official image has it: POSTGRES_USER (postgres), POSTGRES_PASSWORD or POSTGRES_PASSWORD_FILE,
POSTGRES_DB (the user's name), PGDATA. Arguments go to the server. Only PGDATA and the socket's folder are written, so
the root file system may be read-only.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOCKETS = Path("/var/run/postgresql")


def main() -> None:
    """Initialise PGDATA when it is empty and replace this process by postgres."""
    data = Path(os.environ.get("PGDATA", "/var/lib/postgresql/data"))
    if not (data / "PG_VERSION").exists():
        initialise(data)
    sockets = SOCKETS if os.access(SOCKETS, os.W_OK) else Path(tempfile.gettempdir())
    settings = ["listen_addresses=*", f"unix_socket_directories={sockets}"]
    arguments = sys.argv[2:] if sys.argv[1:2] == ["postgres"] else sys.argv[1:]
    options = [word for setting in settings for word in ("-c", setting)]
    os.execvp("postgres", ["postgres", "-D", str(data), *options, *arguments])


def initialise(data: Path) -> None:
    """Make the cluster and the database; the server is never reachable without a password from outside."""
    user = os.environ.get("POSTGRES_USER", "postgres")
    database = os.environ.get("POSTGRES_DB", user)
    data.mkdir(parents=True, exist_ok=True)
    data.chmod(0o700)
    with tempfile.NamedTemporaryFile("w") as secret:
        secret.write(password())
        secret.flush()
        command = [
            "initdb",
            f"--pgdata={data}",
            f"--username={user}",
            f"--pwfile={secret.name}",
            "--encoding=UTF8",
        ]
        command += ["--locale=C.UTF-8", "--auth-host=scram-sha-256", "--auth-local=trust", "--no-sync"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with (data / "pg_hba.conf").open("a") as rules:
        rules.write("host all all all scram-sha-256\n")
    if database != "postgres":
        name = database.replace('"', '""')
        subprocess.run(
            ["postgres", "--single", "-D", str(data), "postgres"],
            input=f'CREATE DATABASE "{name}"\n',
            text=True,
            check=True,
            stdout=subprocess.DEVNULL,
        )


def password() -> str:
    """The superuser's password; ends the program when none is given."""
    file = os.environ.get("POSTGRES_PASSWORD_FILE")
    text = Path(file).read_text().rstrip("\n") if file else os.environ.get("POSTGRES_PASSWORD", "")
    if not text:
        sys.exit("set POSTGRES_PASSWORD or POSTGRES_PASSWORD_FILE")
    return text


if __name__ == "__main__":
    main()
