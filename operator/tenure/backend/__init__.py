"""Role 3: what a backend embeds to drive the agents of a control server, and to find them again after a restart.

::

    import asyncio
    from tenure.backend import Backend, HandOverDirectory

    async def main() -> None:
        async with Backend.connect(HandOverDirectory("/handover"), "postgresql://...") as backend:
            await backend.ready()
            sessions = await backend.resume_sessions()     # of the process before this one
            session = await backend.launch(
                session_id="s-1", task_id="t-1", workspace_path="/work/s-1", agent_command="my-agent --acp"
            )
            turn = await session.prompt("Make the tests pass.")
            async for event in session.events():
                ...
            print(await turn.outcome())

    asyncio.run(main())

The hand-over comes from a mounted Secret (``HandOverDirectory``), from the API server (``HandOverSecret``) or,
without Kubernetes, from the program itself (``LocalOwner``). Every refusal is a ``RetryableError`` or a
``FinalError``.
"""

from tenure.backend.backend import Backend
from tenure.backend.errors import BackendError, Final, FinalError, Retry, RetryableError
from tenure.backend.following import Over
from tenure.backend.handover import HandOverDirectory, HandOverSecret, HandOverSource, write_handover
from tenure.backend.local import LocalOwner
from tenure.backend.session import Session
from tenure.backend.turns import Turn, TurnEnd
from tenure.model.records import SessionState, TaskState, TurnState
from tenure.protocol.frames import Event, PermissionOption, PermissionRequest
from tenure.protocol.handover import HandOver, UnreadableHandOver

__all__ = [
    "Backend",
    "BackendError",
    "Event",
    "Final",
    "FinalError",
    "HandOver",
    "HandOverDirectory",
    "HandOverSecret",
    "HandOverSource",
    "LocalOwner",
    "Over",
    "PermissionOption",
    "PermissionRequest",
    "Retry",
    "RetryableError",
    "Session",
    "SessionState",
    "TaskState",
    "Turn",
    "TurnEnd",
    "TurnState",
    "UnreadableHandOver",
    "write_handover",
]
