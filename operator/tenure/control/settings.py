"""What the control server is told from outside: flags, environment variables and one file, in this order.

Whatever is wrong is said in one go, a sentence for each setting, naming its flag and its variable and what is
allowed. No sentence holds a value: something secret pasted into the wrong place must not end in a log.
"""

import ipaddress
import os
import re
import secrets
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_core import PydanticUndefined
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from tenure.control.settings_file import read_settings_file
from tenure.model.errors import InvalidSettings
from tenure.model.settings import LogLevel
from tenure.protocol.claims import DEFAULT_UNOWNED_MS, FLOOR_MS, UnownedPeriod, effective_period
from tenure.protocol.retention import DEFAULT_LIMIT, MAX_LIMIT, MIN_LIMIT

PREFIX = "TENURE_SERVER_"
MAX_SECONDS = 30 * 24 * 3600
TERMINATION_LOG = Path("/dev/termination-log")
_IDENTITY = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def fresh_identity() -> str:
    """The identity of one process: another process is another server, whoever starts it."""
    return f"cs-{secrets.token_hex(16)}"


def _default_home() -> Path:
    return Path.home() / ".tenure"


def _default_termination_file() -> Path | None:
    return TERMINATION_LOG if TERMINATION_LOG.exists() else None


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


def _split(value: object) -> object:
    """A list, or paths separated as in ``$PATH``."""
    return [part for part in value.split(os.pathsep) if part] if isinstance(value, str) else value


def _absolute(path: Path) -> Path:
    # Symbolic links stay as they are written: the home's text is a part of every proof, on both sides.
    text = os.path.abspath(path.expanduser())
    text.encode("utf-8")  # ValueError for bytes that are no UTF-8: nobody could be told that path
    if "\0" in text or len(text) > 4096:
        raise ValueError("no path")
    return Path(text)


def _address(host: str) -> str:
    if host == "localhost":
        return "127.0.0.1"
    return str(ipaddress.ip_address(host))


_Path = Annotated[Path, AfterValidator(_absolute)]
_Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)]


class ServerSettings(BaseSettings):
    """The settings of a control server; ``load_settings`` makes them. An empty variable counts as unset.

    All durations are seconds. Paths are absolute.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    host: Annotated[str, AfterValidator(_address)] = "127.0.0.1"
    """Address to listen on; :: for all of both families. Without TLS only a loopback address."""

    port: Annotated[int, Field(ge=0, le=65535)] = 7420
    """Port to listen on; 0 for any free one."""

    home: Annotated[_Path, Field(default_factory=_default_home)]
    """Directory of this installation. Its text is a part of every proof: give it to the backend letter by letter."""

    identity: Annotated[str, Field(pattern=f"^{_IDENTITY.pattern}$", default_factory=fresh_identity)]
    """This server's name, a DNS label. Never give it to another process."""

    nonce_file: _Path
    """File with the bootstrap nonce, 16 characters or more. Read once; it may be deleted then."""

    tls_cert: _Path | None = None
    """PEM certificate that clients pin."""

    tls_key: _Path | None = None
    """PEM private key of the certificate, unencrypted."""

    workspace_roots: Annotated[
        tuple[_Path, ...], NoDecode, BeforeValidator(_split), Field(max_length=256)
    ] = ()
    """Directory within which workspaces may lie; may be repeated. Without one no instance can be made."""

    unowned_period: Annotated[float, Field(ge=FLOOR_MS / 1000, le=MAX_SECONDS)] = DEFAULT_UNOWNED_MS / 1000
    """Seconds without a claim after which the server stops its instances and itself."""

    idle_timeout: _Seconds = 3600.0
    """Seconds after which an idle instance is stopped; 0 for never."""

    retention_limit: Annotated[int, Field(ge=MIN_LIMIT, le=MAX_LIMIT)] = DEFAULT_LIMIT
    """Events that each instance keeps while nobody takes them, from 1 to 10000; then its agent waits."""

    shutdown_grace: Annotated[float, Field(ge=1, le=3600)] = 25.0
    """Seconds within which all instances are stopped at the end."""

    log_level: Annotated[LogLevel, BeforeValidator(_upper)] = LogLevel.INFO
    """DEBUG, INFO, WARNING or ERROR."""

    termination_message_file: Annotated[_Path | None, Field(default_factory=_default_termination_file)]
    """File for the one line that says why the server ended."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags before environment before file. The file's values come among the flags, under one key."""
        assert isinstance(init_settings, InitSettingsSource)
        given = dict(init_settings.init_kwargs)
        from_file = given.pop(_FILE, {})
        return (
            InitSettingsSource(settings_cls, init_kwargs=given),
            env_settings,
            InitSettingsSource(settings_cls, init_kwargs=from_file),
        )

    @property
    def period(self) -> UnownedPeriod:
        """The unowned period that the server keeps to, and what changed it."""
        return effective_period(round(self.idle_timeout * 1000), round(self.unowned_period * 1000))

    @property
    def server_dir(self) -> Path:
        """Where this server keeps its log and its run file."""
        return self.home / "servers" / self.identity

    @property
    def encrypted(self) -> bool:
        """Whether it speaks TLS."""
        return self.tls_cert is not None


_FILE = "from_file"


class Setting(StrEnum):
    """What each setting must be, as a sentence goes on after naming it."""

    host = "must be an IP address, or localhost"
    port = "must be a port from 1 to 65535, or 0 for any free one"
    home = "must be the path of a directory, at most 4096 characters of UTF-8"
    identity = "must be a DNS label: at most 63 lower case letters, digits and dashes"
    nonce_file = "must be the path of the file with the bootstrap nonce"
    tls_cert = "must be the path of a PEM file with the certificate"
    tls_key = "must be the path of a PEM file with the private key"
    workspace_roots = (
        f"must be paths of directories, at most 256, separated by {os.pathsep!r} in the variable"
    )
    unowned_period = f"must be a number of seconds from {FLOOR_MS // 1000} to {MAX_SECONDS}"
    idle_timeout = f"must be a number of seconds up to {MAX_SECONDS}, or 0 for no idle reaping"
    retention_limit = f"must be a whole number of events from {MIN_LIMIT} to {MAX_LIMIT}"
    shutdown_grace = "must be a number of seconds from 1 to 3600"
    log_level = f"must be one of {', '.join(LogLevel)}"
    termination_message_file = "must be the path of a file"


_FLAGS = {"workspace_roots": "--workspace-root"}


def flag_of(setting: str) -> str:
    """The flag of a setting."""
    return _FLAGS.get(setting, "--" + setting.replace("_", "-"))


def variable_of(setting: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + setting.upper()


def load_settings(flags: Mapping[str, Any], config: Path | None = None) -> ServerSettings:
    """The settings of this process: ``flags`` (None: not given) before the environment before ``config``.

    Raises ``InvalidSettings`` with a sentence for everything that is wrong.
    """
    if config is None and os.environ.get(f"{PREFIX}CONFIG"):
        config = Path(os.environ[f"{PREFIX}CONFIG"])
    from_file = read_settings_file(config, frozenset(ServerSettings.model_fields)) if config else {}
    given: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    given[_FILE] = from_file
    try:
        settings = ServerSettings(**given)
    except ValidationError as error:
        wrong = dict.fromkeys(
            str(one["loc"][0]) for one in error.errors(include_input=False, include_url=False)
        )
        problems = tuple(_sentence(name) for name in wrong)
    else:
        problems = _together(settings)
        if not problems:
            return settings
    raise InvalidSettings(problems)


def _sentence(setting: str, said: str | None = None) -> str:
    return f"{flag_of(setting)} ({variable_of(setting)}) {said or Setting[setting].value}"


def _together(settings: ServerSettings) -> tuple[str, ...]:
    """What is wrong between settings that are each right by themselves, and with what they point to."""
    problems = []
    if (settings.tls_cert is None) != (settings.tls_key is None):
        absent = "tls_key" if settings.tls_key is None else "tls_cert"
        problems.append(_sentence(absent, "is missing: certificate and key are given together"))
    elif not settings.encrypted and not ipaddress.ip_address(settings.host).is_loopback:
        said = "must be a loopback address without TLS: plain HTTP would show credentials to the network"
        problems.append(_sentence("host", f"{said} (give --tls-cert and --tls-key)"))
    if not settings.nonce_file.is_file():
        problems.append(_sentence("nonce_file", "is not a file that exists"))
    problems.extend(
        _sentence("workspace_roots", "names a directory that does not exist")
        for root in settings.workspace_roots
        if not root.is_dir()
    )
    return tuple(dict.fromkeys(problems))


_DEFAULTS = {
    "home": "~/.tenure",
    "identity": "a fresh one",
    "termination_message_file": f"{TERMINATION_LOG}, if there is one",
}


def default_of(setting: str) -> str:
    """The default of a setting, for people; empty for none."""
    value = _DEFAULTS.get(setting) or ServerSettings.model_fields[setting].default
    if value is None or value == () or value is PydanticUndefined:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)
