"""``tenure control-server``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tenure.cli.main import missing
from tenure.control.lifetime import EXIT_FAILED, EXIT_SETTINGS, say
from tenure.control.settings import ServerSettings, default_of, flag_of, load_settings, variable_of
from tenure.model.errors import InvalidSettings

_EPILOG = (
    "A flag goes before its variable, the variable before the file of --config, and the file before the default. "
    "Exit codes: 0 told to end, 1 could not start, 2 refused these settings, 10 unowned for its whole period."
)


def _option(setting: str, value: str, panel: str) -> Any:
    # The values are texts: one place judges them, wherever they come from.
    said = ServerSettings.model_fields[setting].description or ""
    default = default_of(setting)
    said += f" [dim]default: {default}[/dim]" if default else ""
    return typer.Option(
        flag_of(setting),
        help=f"{said} [dim]{variable_of(setting)}[/dim]",
        metavar=value,
        rich_help_panel=panel,
        show_default=False,
    )


_LISTEN, _OWN, _HOST, _END = (
    "Where it listens",
    "Whose it is",
    "What it hosts",
    "How it ends and what it tells",
)


def control_server(
    host: Annotated[str | None, _option("host", "ADDRESS", _LISTEN)] = None,
    port: Annotated[str | None, _option("port", "PORT", _LISTEN)] = None,
    tls_cert: Annotated[str | None, _option("tls_cert", "FILE", _LISTEN)] = None,
    tls_key: Annotated[str | None, _option("tls_key", "FILE", _LISTEN)] = None,
    home: Annotated[str | None, _option("home", "DIRECTORY", _OWN)] = None,
    nonce_file: Annotated[str | None, _option("nonce_file", "FILE", _OWN)] = None,
    identity: Annotated[str | None, _option("identity", "NAME", _OWN)] = None,
    unowned_period: Annotated[str | None, _option("unowned_period", "SECONDS", _OWN)] = None,
    workspace_root: Annotated[list[str] | None, _option("workspace_roots", "DIRECTORY", _HOST)] = None,
    idle_timeout: Annotated[str | None, _option("idle_timeout", "SECONDS", _HOST)] = None,
    retention_limit: Annotated[str | None, _option("retention_limit", "EVENTS", _HOST)] = None,
    shutdown_grace: Annotated[str | None, _option("shutdown_grace", "SECONDS", _END)] = None,
    termination_message_file: Annotated[str | None, _option("termination_message_file", "FILE", _END)] = None,
    log_level: Annotated[str | None, _option("log_level", "LEVEL", _END)] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="Settings as YAML, TOML or JSON, by the names of the flags. [dim]TENURE_SERVER_CONFIG[/dim]",
        ),
    ] = None,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            help="Return once it listens; it runs on in a session of its own, without a terminal.",
        ),
    ] = False,
) -> None:
    """Run a control server: it hosts agents, and keeps them when the backend that drives them restarts."""
    flags = {name: value for name, value in locals().items() if name not in ("config", "detach")}
    flags["workspace_roots"] = flags.pop("workspace_root") or None
    try:
        settings = load_settings(flags, config)
        code = _run(settings, detach)
    except InvalidSettings as error:
        for problem in error.problems:
            say(f"tenure control-server: {problem}")
        code = EXIT_SETTINGS
    raise typer.Exit(code)


def _run(settings: ServerSettings, detach: bool) -> int:
    # Imported here: help and refusals need none of it, and the library of ACP alone takes a second.
    try:
        from tenure.control.detach import detached
        from tenure.control.main import run
        from tenure.control.server import Surroundings
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tenure"):
            raise
        say(missing(error, "server"))
        return EXIT_FAILED
    if detach:
        return detached(lambda ready: run(settings, Surroundings(ready=ready, detached=True)))
    return run(settings, Surroundings(ready=say))


control_server.__doc__ = f"{control_server.__doc__}\n\n{_EPILOG}"
