"""What the operator is told from outside: environment variables, and a directory of named databases.

Whatever is wrong is said in one go, a sentence for each setting, and no sentence holds a value: a URL
pasted into the wrong variable must not end in a log.
"""

import re
import socket
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from tenure import __version__
from tenure.model.errors import InvalidSettings
from tenure.model.masked import Masked

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_URL_LIMIT = 4096
_SCHEMES = ("postgresql://", "postgres://")
_LABEL_WORDS = "lower case letters, digits and dashes, at most 63"


class LogLevel(StrEnum):
    """How much is logged."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


def _split(value: object) -> object:
    """``"b, a,,b"`` as ``("a", "b")``: order and repetition mean nothing."""
    return (
        tuple(sorted({part.strip() for part in value.split(",")} - {""})) if isinstance(value, str) else value
    )


def _pairs(value: object) -> object:
    """``"a=b,c=d"`` as a mapping."""
    if not isinstance(value, str):
        return value
    return dict(part.strip().split("=", 1) for part in value.split(",") if part.strip())


_Label = Annotated[str, Field(pattern=f"^{_LABEL.pattern}$")]


class OperatorSettings(BaseSettings):
    """The operator's settings, read from the environment by ``load_settings``. An empty variable counts as
    unset."""

    model_config = SettingsConfigDict(
        env_prefix="TENURE_", env_ignore_empty=True, frozen=True, extra="ignore"
    )

    namespaces: Annotated[tuple[_Label, ...], NoDecode, BeforeValidator(_split)] = ()
    """The namespaces to work in; empty for the whole cluster."""

    databases_dir: Path | None = None
    """One subdirectory for each named database, see ``load_databases``; None for no database at all."""

    lease_namespace: _Label = Field(validation_alias=AliasChoices("TENURE_LEASE_NAMESPACE", "POD_NAMESPACE"))
    """Where the Lease is; the pod's own namespace unless said otherwise."""

    lease_name: Annotated[str, Field(pattern=rf"^{_LABEL.pattern}(\.{_LABEL.pattern})*$")] = "tenure-operator"
    """The Lease that makes one operator of several."""

    lease_seconds: Annotated[int, Field(ge=3, le=300)] = 15
    """How long a Lease that is not renewed keeps another operator away."""

    http_port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Port of /metrics, /healthz and /readyz; 0 for any free one."""

    log_level: Annotated[LogLevel, BeforeValidator(_upper)] = LogLevel.INFO
    """How much is logged."""

    poll_seconds: Annotated[float, Field(ge=0.1, le=60)] = 5
    """Seconds within which a stop by table is seen where no trigger tells; each liveness table is read a little
    more often than that."""

    pod_name: Annotated[str, Field(min_length=1, max_length=253)] = Field(
        default_factory=socket.gethostname, validation_alias="POD_NAME"
    )
    """The name under which this operator holds the Lease."""

    pod_uid: Annotated[str, Field(max_length=253)] = Field(default="", validation_alias="POD_UID")
    """The UID of this operator's pod: a part of its incarnation where it is the backend itself. Empty outside of a
    cluster."""

    pod_namespace: str = Field(default="", validation_alias="POD_NAMESPACE")
    """The namespace of the operator's own pods; empty outside of a cluster."""

    pod_labels: Annotated[dict[str, str], NoDecode, BeforeValidator(_pairs)] = Field(default_factory=dict)
    """Labels that only the operator's own pods have, by which NetworkPolicies let them reach control servers; empty
    outside of a cluster: no policy is made then."""

    server_image: Annotated[str, Field(pattern=r"^\S{1,1024}$")] = f"tenure:{__version__}"
    """The image of control servers whose object names none."""


_ALLOWED: dict[str, tuple[str, str]] = {
    "namespaces": (
        "TENURE_NAMESPACES",
        f"must be names of namespaces separated by commas ({_LABEL_WORDS} each)",
    ),
    "databases_dir": ("TENURE_DATABASES_DIR", "must be the path of a directory"),
    "lease_namespace": (
        "TENURE_LEASE_NAMESPACE",
        "must be the name of a namespace; one of it and POD_NAMESPACE, which stands in for it, is needed",
    ),
    "lease_name": (
        "TENURE_LEASE_NAME",
        "must be the name of a Lease: lower case letters, digits, dashes and dots",
    ),
    "lease_seconds": ("TENURE_LEASE_SECONDS", "must be a whole number from 3 to 300 (seconds)"),
    "http_port": ("TENURE_HTTP_PORT", "must be a port from 1 to 65535, or 0 for any free one"),
    "log_level": ("TENURE_LOG_LEVEL", f"must be one of {', '.join(LogLevel)}"),
    "poll_seconds": ("TENURE_POLL_SECONDS", "must be a number from 0.1 to 60 (seconds)"),
    "pod_name": ("POD_NAME", "must be a name with 1 to 253 characters"),
    "pod_uid": ("POD_UID", "must be the UID of this pod"),
    "pod_namespace": ("POD_NAMESPACE", "must be the name of a namespace"),
    "pod_labels": ("TENURE_POD_LABELS", "must be labels separated by commas, such as a=b,c=d"),
    "server_image": ("TENURE_SERVER_IMAGE", "must be the name of an image, without spaces"),
}
_FIELD_OF = {
    "TENURE_LEASE_NAMESPACE": "lease_namespace",
    "POD_NAMESPACE": "lease_namespace",
    "POD_NAME": "pod_name",
    "POD_UID": "pod_uid",
}


def load_settings() -> OperatorSettings:
    """The settings of this process's environment. Raises ``InvalidSettings`` naming every variable that is
    wrong."""
    try:
        return OperatorSettings()
    except ValidationError as error:
        fields = (str(problem["loc"][0]) for problem in error.errors(include_input=False, include_url=False))
        wrong = dict.fromkeys(_FIELD_OF.get(field, field) for field in fields)
    raise InvalidSettings(tuple(" ".join(_ALLOWED[field]) for field in wrong))


@dataclass(frozen=True, slots=True)
class DatabaseConfig:
    """One of the named databases. ``namespaces``: those that may use it, None for all."""

    name: str
    url: Masked
    namespaces: frozenset[str] | None = None
    store: bool = False

    def allows(self, namespace: str) -> bool:
        """Whether agents of this namespace may be looked up and stopped here."""
        return self.namespaces is None or namespace in self.namespaces


def load_databases(directory: Path | None) -> tuple[DatabaseConfig, ...]:
    """The named databases, by name: each is a subdirectory with files made of a Secret's keys.

    ``url`` (needed): a PostgreSQL URL. ``namespaces``: names separated by commas, or ``*``; all when there
    is no such file. ``store``: a file of this name, whatever it holds, marks the one database that keeps
    the ledger as well. Names that begin with a dot are passed over: they are how a kubelet updates a
    volume. None means no database.

    Raises ``InvalidSettings`` with a sentence for each thing that is wrong; no sentence holds any part of a
    URL.
    """
    if directory is None:
        return ()
    if not directory.is_dir():
        raise InvalidSettings((" ".join(_ALLOWED["databases_dir"]),))
    problems: list[str] = []
    found = []
    for entry in sorted(directory.iterdir()):
        if entry.name.startswith(".") or not entry.is_dir():
            continue
        try:
            found.append(_database(entry))
        except InvalidSettings as error:
            problems.extend(error.problems)
    stores = [database.name for database in found if database.store]
    if len(stores) > 1:
        problems.append(f"only one database can be the store, and these are marked so: {', '.join(stores)}")
    if problems:
        raise InvalidSettings(tuple(problems))
    return tuple(found)


def _database(directory: Path) -> DatabaseConfig:
    name = directory.name
    problems = []
    if _LABEL.fullmatch(name) is None:
        problems.append(f"database {name!r}: its name must be made of {_LABEL_WORDS}")
    url = _read(directory / "url")
    if url is None:
        problems.append(f"database {name!r}: the file {directory / 'url'} is missing or cannot be read")
    elif not _is_postgresql(url):
        problems.append(
            f"database {name!r}: its url must be one line, postgresql://user:password@host:port/database"
        )
    namespaces, wrong = _namespaces(directory)
    problems.extend(wrong)
    if problems:
        raise InvalidSettings(tuple(problems))
    return DatabaseConfig(name, Masked(url or ""), namespaces, (directory / "store").exists())


def _read(file: Path) -> str | None:
    """The text without the line end that editors add; None when there is no readable file."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None


def _is_postgresql(url: str) -> bool:
    """Refuse only what no driver would take: several hosts and socket directories are legal URLs, too."""
    fits = len(url) <= _URL_LIMIT and url.isprintable() and " " not in url
    return fits and any(url.startswith(scheme) and url != scheme for scheme in _SCHEMES)


def _namespaces(directory: Path) -> tuple[frozenset[str] | None, list[str]]:
    file = directory / "namespaces"
    if not file.exists():
        return None, []
    names = [part.strip() for part in (_read(file) or "").replace("\n", ",").split(",")]
    named = frozenset(names) - {""}
    if named == {"*"}:
        return None, []
    if named and all(_LABEL.fullmatch(name) for name in named):
        return named, []
    allowed = "names of namespaces separated by commas, or * for all of them"
    return None, [f"database {directory.name!r}: {file} must hold {allowed}"]
