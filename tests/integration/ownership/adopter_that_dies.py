"""A program that adopts the server of a credential file and kills itself at one step of it.

python -m tests.integration.ownership.adopter_that_dies FILE INCARNATION STEP
"""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from tenure.ownership import transport
from tenure.ownership.adoption import Adopter
from tenure.ownership.client import ControlClient
from tenure.ownership.files import FileCredentialStore
from tenure.ownership.holding import Holding

STEPS = (
    "before the rotation",
    "rotated, answer not read",
    "answer read",
    "credential written, not in place",
    "credential in place, not said to be",
    "stored",
    "recorded",
    "before the confirmation",
    "confirmed, answer not read",
    "confirmed",
    "confirmation stored",
)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def around(owner: Any, name: str, *, before: bool) -> None:
    """Die before or after this method of ``owner``."""
    real: Callable[..., Awaitable[Any]] = getattr(owner, name)

    async def dying(*arguments: Any, **named: Any) -> Any:
        if before:
            die()
        done = await real(*arguments, **named)
        die()
        return done

    setattr(owner, name, dying)


def on_answer_of(word: str) -> None:
    """Die when the server has begun to answer this path, and nothing of the body is read."""
    real = transport._read

    async def dying(response: aiohttp.ClientResponse, limit: int) -> bytes:
        if response.url.path.endswith(word):
            die()
        return await real(response, limit)

    transport._read = dying


def arm(step: str) -> None:
    replace, store = Path.replace, FileCredentialStore.store
    match step:
        case "before the rotation":
            around(ControlClient, "rotate", before=True)
        case "rotated, answer not read":
            on_answer_of("/rotate")
        case "answer read":
            around(ControlClient, "rotate", before=False)
        case "credential written, not in place":
            Path.replace = lambda self, target: die()  # type: ignore[assignment,method-assign,return-value]
        case "credential in place, not said to be":

            def replaced(self: Path, target: Path) -> None:
                replace(self, target)
                die()

            Path.replace = replaced  # type: ignore[assignment,method-assign]
        case "stored":
            around(FileCredentialStore, "store", before=False)
        case "before the confirmation":
            around(ControlClient, "confirm", before=True)
        case "confirmed, answer not read":
            on_answer_of("/confirm")
        case "confirmed":
            around(ControlClient, "confirm", before=False)
        case "confirmation stored":

            async def dying(self: FileCredentialStore, holding: Holding) -> Holding:
                stored = await store(self, holding)
                if stored.confirmed:
                    die()
                return stored

            FileCredentialStore.store = dying  # type: ignore[method-assign]


async def main(path: str, incarnation: str, step: str) -> None:
    arm(step)

    async def record(holding: Holding) -> None:
        if step == "recorded":
            die()

    async with FileCredentialStore(path) as store:
        print((await Adopter(store, incarnation, record=record).adopt()).reason)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
