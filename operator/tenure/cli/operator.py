"""``tenure operator``."""

import typer

from tenure.operator.main import main


def operator() -> None:
    """Run the operator until it is told to stop. Settings come from the environment (TENURE_...)."""
    raise typer.Exit(main())
