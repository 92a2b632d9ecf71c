"""The backend of the demo's second act: one session and one prompt. Started again, it goes on with both.

Variables: CONTROL_SERVER (its name), INSTALLATION, NAMESPACE, POD_UID, DATABASE_URL, and AGENT (a command).
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenure.backend import Backend, HandOverSecret, RetryableError, Session

SESSION = "demo"
PROMPT = "count the words of every file and write a report"
WORKSPACE = "/var/lib/tenure/work/demo"
T = TypeVar("T")


async def patiently(step: Callable[[], Awaitable[T]]) -> T:
    """Until it works: right after a start recovery may still be under way."""
    while True:
        try:
            return await step()
        except RetryableError as error:
            print(f"not yet: {error}", flush=True)
            await asyncio.sleep(0.5)


async def session_of(backend: Backend) -> Session:
    """The session, found or launched."""
    found = [one for one in await patiently(backend.resume_sessions) if one.id == SESSION]
    print(f"sessions found: {len(found)}", flush=True)
    if found:
        return found[0]
    return await patiently(
        lambda: backend.launch(
            session_id=SESSION,
            task_id="count-words",
            workspace_path=WORKSPACE,
            agent_command=os.environ["AGENT"],
        )
    )


async def give(backend: Backend, session: Session) -> None:
    """The prompt, once: it is given if no turn is on record, and given again if nobody knows whether it arrived."""
    turns = await backend.records.turns.of_session(SESSION)
    if session.open_turn is not None:
        await patiently(lambda: session.resend(PROMPT))
    elif not turns:
        await patiently(lambda: session.prompt(PROMPT))


async def main() -> None:
    source = HandOverSecret(f"{os.environ['CONTROL_SERVER']}-handover", os.environ["NAMESPACE"])
    async with Backend.connect(
        source,
        os.environ["DATABASE_URL"],
        namespace=os.environ["NAMESPACE"],
        installation=os.environ["INSTALLATION"],
    ) as backend:
        await backend.ready()
        session = await session_of(backend)
        await give(backend, session)
        async for event in session.events():
            if event.type == "permission_request":
                await session.answer(str(event.fields["pending_id"]), "allow")
            elif event.terminal:
                print(f"the turn has ended: {event.type}", flush=True)
        print(f"the session is over: {session.over}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
