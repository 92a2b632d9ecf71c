"""The console script ``tenure``. The base install is the agent library alone, so it may find no command line
there."""

import sys
from collections.abc import Sequence


def missing(error: ModuleNotFoundError, extra: str) -> str:
    """What to say when a module is not installed that ``extra`` brings."""
    return f"{error.name} is not installed. This command needs an extra: pip install 'tenure[{extra}]'"


def app(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits with the command's code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        from tenure.cli.commands import build
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tenure"):
            raise
        sys.exit(missing(error, "cli"))
    build(words)(words, prog_name="tenure")
