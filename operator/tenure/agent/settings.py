"""The environment of an agent: read once, checked, and explained when it is wrong."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tenure.model.masked import Masked
from tenure.storage.liveness import LivenessStorage

INSTANCE_ID = "TENURE_INSTANCE_ID"
PROCESS_KIND = "TENURE_PROCESS_KIND"
LIVENESS_INTERVAL = "TENURE_LIVENESS_INTERVAL"
DATABASE_URL = "TENURE_DATABASE_URL"

DEFAULT_KIND = "agent"
DEFAULT_INTERVAL = 30.0
LONGEST_INTERVAL = 86_400.0
LONGEST_KIND = 63
LONGEST_ID = 200


class SettingsError(ValueError):
    """A setting has a value that is not allowed. The text names the variable and says what is allowed."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What the environment says. ``instance_id`` None: make one. ``database_url`` None: no liveness table."""

    instance_id: str | None
    process_kind: str
    liveness_interval: float
    database_url: Masked | None

    @classmethod
    def from_env(cls, environ: Mapping[str, str], *, process_kind: str | None = None) -> "AgentSettings":
        """Read the four variables; an empty one counts as unset. Raises ``SettingsError``.

        ``process_kind`` is used where the environment names none.
        """
        url = environ.get(DATABASE_URL, "")
        return cls(
            instance_id=_instance_id(environ.get(INSTANCE_ID, "")),
            process_kind=checked_kind(environ.get(PROCESS_KIND) or process_kind or DEFAULT_KIND),
            liveness_interval=_interval(environ.get(LIVENESS_INTERVAL, "")),
            database_url=Masked(url) if url else None,
        )


def checked_kind(kind: str) -> str:
    if not 1 <= len(kind) <= LONGEST_KIND or not kind.isprintable():
        raise SettingsError(
            f"{PROCESS_KIND} must be 1 to {LONGEST_KIND} characters without control characters, not {kind!r}"
        )
    return kind


def checked_interval(seconds: float) -> float:
    if not math.isfinite(seconds) or not 0 < seconds <= LONGEST_INTERVAL:
        raise SettingsError(
            f"{LIVENESS_INTERVAL} must be a number of seconds above 0 and at most {LONGEST_INTERVAL:.0f}, "
            f"not {seconds!r}"
        )
    return seconds


def _instance_id(text: str) -> str | None:
    if len(text) > LONGEST_ID or not text.isprintable():
        raise SettingsError(
            f"{INSTANCE_ID} must be at most {LONGEST_ID} characters without control characters"
        )
    return text or None


def _interval(text: str) -> float:
    if not text:
        return DEFAULT_INTERVAL
    try:
        seconds = float(text)
    except ValueError:
        raise SettingsError(f"{LIVENESS_INTERVAL} must be a number of seconds, not {text!r}") from None
    return checked_interval(seconds)


def open_storage(url: Masked, *, limit: float) -> LivenessStorage:
    """The storage that a URL means: ``postgresql://...`` or ``sqlite:///path``. Nothing is contacted yet.

    Raises ``SettingsError``, which never quotes the URL.
    """
    # Here, as the drivers below: together a tenth of the time that importing this package takes.
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    try:
        parts = urlsplit(url.reveal())
    except ValueError:
        raise SettingsError(f"{DATABASE_URL} is no URL; {_ALLOWED_URLS}") from None
    if parts.scheme in ("postgresql", "postgres"):
        from tenure.storage.postgres import PostgresLivenessStorage

        return PostgresLivenessStorage(url, limit=limit)
    if parts.scheme == "sqlite":
        path = unquote(parts.path)
        # As elsewhere: three slashes and a relative path, four and an absolute one.
        if parts.netloc or len(path) < 2:
            raise SettingsError(f"{DATABASE_URL} names no file; {_ALLOWED_URLS}")
        from tenure.storage.sqlite import SqliteLivenessStorage

        return SqliteLivenessStorage(Path(path[1:]), limit=limit)
    raise SettingsError(f"{DATABASE_URL} has another scheme than Tenure knows; {_ALLOWED_URLS}")


_ALLOWED_URLS = (
    "allowed are postgresql://user:password@host:port/database, sqlite:///relative/path and "
    "sqlite:////absolute/path"
)
