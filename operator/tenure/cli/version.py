"""``tenure version``."""

import typer

from tenure import __version__


def version() -> None:
    """Print the version."""
    typer.echo(__version__)
