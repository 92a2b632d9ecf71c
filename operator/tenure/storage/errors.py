"""What can go wrong with a database, said without quoting it.

A driver's or a server's own words may hold a URL, a user name or values of a row. So nothing here ever
copies them: an error is classified by its type and SQLSTATE
(https://www.postgresql.org/docs/current/errcodes-appendix.html) into one of our own sentences.
"""

import asyncio

READ_ONLY = "25006"

_BY_SQLSTATE = {
    READ_ONLY: "the server is read-only (a standby, or a primary after a failover)",
    "28000": "the server refused the role",
    "28P01": "the server refused the password",
    "3D000": "there is no such database",
    "42501": "permission denied: see `tenure migrate --print-grants`",
    "42P01": "a table is missing: run `tenure migrate`",
    "42703": "a column is missing: run `tenure migrate`",
    "3F000": "a schema is missing: run `tenure migrate`",
    "53300": "the server has no connection left",
    "55P03": "a lock was not free in time",
    "57014": "the statement took too long",
    "57P01": "the server is shutting down",
    "57P03": "the server is starting up",
}


class StorageError(Exception):
    """Base of every error that the storage layer raises on purpose. Its text is safe to show."""


class DatabaseUnavailable(StorageError):
    """A named database did not do what it was asked, within its time limit.

    ``name`` is the configured name, ``reason`` one of our own sentences: never a URL, a password or the
    server's words.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"database {name!r}: {reason}")
        self.name = name
        self.reason = reason

    def __reduce__(self) -> tuple[type["DatabaseUnavailable"], tuple[str, str]]:
        return type(self), (self.name, self.reason)


class EntryRefused(StorageError):
    """The database is well, and does not take this one entry: a value out of range, a constraint. Its text names
    no value."""


class MigrationRefused(StorageError):
    """The schema found is not one that our migrations made or may change. The text says what to do."""


def sqlstate_of(error: BaseException) -> str | None:
    """The five characters of SQLSTATE, for an error that the server sent; None for any other."""
    state = getattr(error, "sqlstate", None)
    return state if isinstance(state, str) and len(state) == 5 and state.isalnum() else None


def refuses_values(error: BaseException) -> bool:
    """Whether it is the values of a statement that were refused (SQLSTATE classes 22 and 23), by server or driver."""
    return (sqlstate_of(error) or "")[:2] in {"22", "23"}


def loses_connection(error: BaseException) -> bool:
    """Whether the connection on which ``error`` happened must not be used again.

    Everything but a plain refusal of a statement: time limits, cancellations, broken sockets, and a server
    that turned read-only (after a failover the old primary answers, but takes no write).
    """
    state = sqlstate_of(error)
    return state is None or state == READ_ONLY or state[:2] in {"08", "57", "58", "XX"}


def reason_of(error: BaseException) -> str:
    """One sentence for an error of asyncpg, aiosqlite or the socket below them, quoting none of its words."""
    state = sqlstate_of(error)
    if state is not None:
        return _BY_SQLSTATE.get(state, f"the server answered with SQLSTATE {state}")
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return "no answer within the time limit"
    if isinstance(error, OSError):
        return f"not reachable ({type(error).__name__})"
    if isinstance(error, StorageError):
        return str(error)
    return f"failed ({type(error).__name__})"
