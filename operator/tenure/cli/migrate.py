"""``tenure migrate``: make or upgrade the tables, or print the grants that the roles need."""

import asyncio
from typing import Annotated

import typer

from tenure.model.masked import Masked
from tenure.storage.errors import DatabaseUnavailable, StorageError
from tenure.storage.grants import Roles, grants_sql
from tenure.storage.liveness import MigrationReport
from tenure.storage.migrations import migrate_schema
from tenure.storage.postgres import PostgresLivenessStorage

_Url = Annotated[
    str,
    typer.Option(
        "--database-url",
        envvar="TENURE_DATABASE_URL",
        show_envvar=True,
        help="postgresql://... of the database.",
    ),
]
_LivenessOnly = Annotated[
    bool,
    typer.Option("--liveness-only", help="For a database that is not the store: no schema tenure."),
]


def migrate(
    database_url: _Url = "",
    print_grants: Annotated[
        bool, typer.Option("--print-grants", help="Change nothing; print SQL for the four roles.")
    ] = False,
    liveness_only: _LivenessOnly = False,
    operator_role: Annotated[str, typer.Option(help="Role of the operator.")] = "tenure_operator",
    agent_role: Annotated[str, typer.Option(help="Role of the agents.")] = "tenure_agent",
    backend_role: Annotated[str, typer.Option(help="Role of a backend.")] = "tenure_backend",
    stopper_role: Annotated[str, typer.Option(help="Role of whoever stops agents.")] = "tenure_stopper",
    backend_namespace: Annotated[
        list[str] | None, typer.Option(help="Namespace whose rows the backend's role sees; may be repeated.")
    ] = None,
) -> None:
    """Make or upgrade Tenure's tables in a database. Safe to repeat, and to run twice at once."""
    try:
        if print_grants:
            roles = Roles(
                operator_role, agent_role, backend_role, stopper_role, tuple(backend_namespace or ())
            )
            typer.echo(grants_sql(roles, store=not liveness_only), nl=False)
            return
        if not database_url:
            _fail(
                "no database: give --database-url or set TENURE_DATABASE_URL to postgresql://user@host/database"
            )
        asyncio.run(_migrate(Masked(database_url), store=not liveness_only))
    except (StorageError, ValueError) as error:
        _fail(error.reason if isinstance(error, DatabaseUnavailable) else str(error))


def _fail(sentence: str) -> None:
    typer.secho(f"tenure migrate: {sentence}", err=True, fg="red")
    raise typer.Exit(1)


async def _migrate(url: Masked, *, store: bool) -> None:
    storage = PostgresLivenessStorage(url, limit=60, application="tenure-migrate")
    try:
        _tell(await storage.migrate())
    finally:
        await storage.aclose()
    if store:
        applied = await migrate_schema(url)
        for name in applied:
            typer.echo(f"schema tenure: applied {name}")
        if not applied:
            typer.echo("schema tenure: up to date")


def _tell(report: MigrationReport) -> None:
    for sentence in report.changed:
        typer.echo(f"liveness: {sentence}")
    if not report.changed:
        typer.echo("liveness: up to date")
    for sentence in report.missing:
        typer.secho(f"liveness: not permitted to add the {sentence}", fg="yellow")
