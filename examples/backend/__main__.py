"""A backend that may die at any moment.

    python -m examples.backend prepare           a database, a nonce, room for workspaces: all in .cache/try
    python -m examples.backend start             run the backend in the background, and say what it does
    python -m examples.backend serve             run it here
    python -m examples.backend kill              kill -9 for the backend, and what lives on
    python -m examples.backend remove            end the backend and the control server, remove everything

``start`` takes ``--prompt TEXT`` (begin a session with it), ``--allow`` (answer every permission request with its first
option) and ``--follow`` (tell what happens until every turn is over). See README.md.
"""

import argparse
import asyncio
import sys

from examples.backend import trial
from examples.backend.serve import serve
from examples.database import CannotStart


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(prog="python -m examples.backend", description="A backend that may die.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("prepare", help="start a database, write a nonce, make room for workspaces")
    start = commands.add_parser("start", help="run the backend in the background")
    start.add_argument("--prompt", help="begin a session with this prompt")
    start.add_argument("--follow", action="store_true", help="tell what happens until every turn is over")
    here = commands.add_parser("serve", help="run the backend in the foreground")
    for one in (start, here):
        one.add_argument(
            "--allow", action="store_true", help="answer every permission request with its first option"
        )
    commands.add_parser("kill", help="end the backend by SIGKILL, and say what lives on")
    commands.add_parser("remove", help="end the backend and the control server, remove everything")
    chosen = parser.parse_args()
    try:
        match chosen.command:
            case "prepare":
                trial.prepare()
            case "start":
                asyncio.run(trial.start(chosen.prompt, allow=chosen.allow, follow=chosen.follow))
            case "serve":
                asyncio.run(serve(allow=chosen.allow))
            case "kill":
                trial.kill()
            case "remove":
                asyncio.run(trial.remove())
    except CannotStart as missing:
        sys.exit(f"examples.backend: {missing}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
