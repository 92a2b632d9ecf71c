"""The executions that recovery has rebuilt, by session: in memory only, for one incarnation and one server."""

from dataclasses import dataclass, field

from tenure.operator.servers.ports import ServerKey
from tenure.plan.adoption.reconstruction import Execution


@dataclass(slots=True)
class _Shelf:
    incarnation: str
    server_identity: str
    executions: dict[str, Execution] = field(default_factory=dict, repr=False)


class ExecutionStore:
    """Environments are part of an execution: nothing in here is stored, logged or shown."""

    def __init__(self) -> None:
        self._shelves: dict[ServerKey, _Shelf] = {}

    def put(self, key: ServerKey, incarnation: str, server_identity: str, execution: Execution) -> None:
        """Track it. What belongs to another incarnation or another server of this key is dropped."""
        shelf = self._shelves.get(key)
        if shelf is None or (shelf.incarnation, shelf.server_identity) != (incarnation, server_identity):
            shelf = self._shelves[key] = _Shelf(incarnation, server_identity)
        shelf.executions[execution.session] = execution

    def sessions(self, key: ServerKey, incarnation: str, server_identity: str) -> frozenset[str]:
        """The sessions that are tracked in this incarnation on this server."""
        shelf = self._shelves.get(key)
        if shelf is None or (shelf.incarnation, shelf.server_identity) != (incarnation, server_identity):
            return frozenset()
        return frozenset(shelf.executions)

    def get(self, key: ServerKey, session: str) -> Execution | None:
        """The execution of one session."""
        shelf = self._shelves.get(key)
        return shelf.executions.get(session) if shelf is not None else None

    def remove(self, key: ServerKey, session: str) -> None:
        """Its agent has gone."""
        shelf = self._shelves.get(key)
        if shelf is not None:
            shelf.executions.pop(session, None)

    def drop(self, key: ServerKey) -> None:
        """The server is not ours any more: everything about it goes."""
        self._shelves.pop(key, None)
