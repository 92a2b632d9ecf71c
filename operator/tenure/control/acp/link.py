"""One running agent: the process, the conversation with it, and its end."""

import asyncio
from collections.abc import Sequence

from pydantic import JsonValue

from tenure.control.acp.contract import AgentExit, Host, Launch


class Link:
    """A running agent. Made by ``start``; every other method but ``stop`` raises ``AgentFailed`` once it ended."""

    pid: int
    ended: "asyncio.Future[AgentExit]"
    """Done when the process ended; never raises, never cancelled by the link. What the agent wrote before may
    still be on its way to the host: ``prompt`` fails, and the event ``agent_exited`` comes, only after it."""

    @classmethod
    async def start(cls, launch: Launch, host: Host) -> "Link":
        """Run the agent in a session of its own. Raises ``AgentFailed`` ("not_started")."""
        raise NotImplementedError

    @property
    def busy(self) -> bool:
        """A request of ours or of the agent's is in flight, or a command of its terminals runs."""
        raise NotImplementedError

    async def initialize(self) -> JsonValue:
        """Agree on the protocol; the agent's own answer (capabilities, methods of logging in, its name)."""
        raise NotImplementedError

    async def new_session(self) -> str:
        """Begin a session in the workspace; the agent's own id of it, needed to load it later."""
        raise NotImplementedError

    async def load_session(self, id: str) -> None:
        """Go on with an earlier session of this agent; its history is told as events before this returns."""
        raise NotImplementedError

    async def prompt(self, text: str, attachments: Sequence[JsonValue]) -> str:
        """Give the agent a turn and wait for its end: the stop reason. Every event of the turn was told before."""
        raise NotImplementedError

    async def cancel(self) -> None:
        """Ask the agent to end its turn: ``prompt`` then returns "cancelled". Open permission requests are
        cancelled. Never waits for the agent."""
        raise NotImplementedError

    def stderr(self) -> tuple[str, ...]:
        """The last lines that the agent wrote to its standard error, at most 64 KiB."""
        raise NotImplementedError

    async def stop(self, budget: float) -> AgentExit:
        """End the agent and every process that comes from it, within ``budget`` seconds: cancel and close its
        input, then SIGTERM, then SIGKILL. Idempotent; concurrent calls share one stop. Never raises."""
        raise NotImplementedError
