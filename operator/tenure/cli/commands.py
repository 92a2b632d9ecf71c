"""The commands by name. Only the one that is run is imported: ``tenure crds`` needs no kopf."""

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from tenure.cli.main import missing


@dataclass(frozen=True, slots=True)
class Command:
    """Where a command is: ``module`` has a function of the command's name, with underscores for dashes;
    ``extra`` brings what it imports."""

    module: str
    extra: str
    summary: str


COMMANDS: dict[str, Command] = {
    "operator": Command("tenure.cli.operator", "operator", "Run the operator until it is told to stop."),
    "control-server": Command(
        "tenure.cli.control_server",
        "server",
        "Run a control server, which hosts agents.",
    ),
    "crds": Command("tenure.cli.crds", "cli", "Print the custom resource definitions."),
    "migrate": Command(
        "tenure.cli.migrate",
        "operator",
        "Bring the databases up to date.",
    ),
    "rbac": Command("tenure.cli.rbac", "cli", "Print the roles that the operator needs."),
    "version": Command("tenure.cli.version", "cli", "Print the version."),
}


def build(words: Sequence[str]) -> Callable[..., Any]:
    """The command line for these words: the command they name for real, the others only to be listed.

    Exits with a sentence when the command needs an extra that is not installed.
    """
    chosen = next((word for word in words if not word.startswith("-")), None)
    app = typer.Typer(
        name="tenure",
        help="Stop AI agents without losing their work.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_show_locals=False,
        rich_markup_mode="rich",
    )
    for name, command in COMMANDS.items():
        function = _load(name, command) if name == chosen else _stub
        app.command(name, help=None if name == chosen else command.summary)(function)
    return app


def _stub() -> None:
    raise AssertionError("only listed, never run")


def _load(name: str, command: Command) -> Callable[..., Any]:
    try:
        module = importlib.import_module(command.module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tenure"):
            raise
        sys.exit(missing(error, command.extra))
    function: Callable[..., Any] = getattr(module, name.replace("-", "_"))
    return function
