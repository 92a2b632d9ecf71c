"""``tenure rbac``: the roles that the operator needs, from the list of what it calls."""

import json
from enum import StrEnum
from typing import Annotated

import typer
import yaml

from tenure.operator.rbac import DEFAULT_NAME, reasons, roles


class Format(StrEnum):
    """How the roles are printed."""

    YAML = "yaml"
    JSON = "json"


def rbac(
    namespaced: Annotated[
        bool,
        typer.Option("--namespaced", help="One Role, for each watched namespace, and no ClusterRole."),
    ] = False,
    output: Annotated[Format, typer.Option("--format", help="How to print them.")] = Format.YAML,
    lease_name: Annotated[str, typer.Option(help="The operator's TENURE_LEASE_NAME.")] = DEFAULT_NAME,
) -> None:
    """Print the roles that the operator needs, and why."""
    wanted = roles(namespaced=namespaced, lease_name=lease_name)
    if output is Format.JSON:
        typer.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": wanted}, indent=2))
        return
    typer.echo("# What the operator calls, and what for:")
    for reason in reasons():
        typer.echo(f"#   {reason}")
    typer.echo(yaml.safe_dump_all(wanted, sort_keys=False, explicit_start=True), nl=False)
