"""AgentProcesses with a session, in a world with a control server."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.integration.servers.world import NAME, WITHIN, World
from tests.support.agents import scripted
from tests.support.api import Object, path
from tests.support.wait import eventually

PROFILE = "coder"


@dataclass
class Hosting:
    """``world`` with what hosted agents need."""

    world: World

    # The server

    async def server(self, *sessions: str, backend: bool = False, named: bool = True, **spec: Any) -> None:
        """A ControlServer whose profile of each session is a scripted agent with a journal of its own. ``named`` False:
        its installation is called by the object's UID, and ends with it."""
        evidence = self.world.evidence
        profiles = [self.profile(session) for session in sessions or ("one",)]
        for session in sessions or ("one",):
            (evidence.workspaces / session).mkdir(exist_ok=True)
        manifest = self.world.manifest(**{"agentProfiles": profiles, **spec})
        if not backend:
            del manifest["spec"]["backend"]
        if not named:
            del manifest["spec"]["installationID"]
        await self.world.api.create(path("controlservers", self.world.namespace), manifest)

    def profile(self, session: str, *options: str, **more: Any) -> Object:
        """The profile of the agent of this session, named like it."""
        return {
            "name": session,
            "command": list(scripted(self.world.evidence.agent_journal(session), *options)),
            **more,
        }

    async def delete_server(self, propagation: str = "Background") -> None:
        """Delete the ControlServer. ``Orphan``: its pod stays."""
        await self.world.api.delete(
            path("controlservers", self.world.namespace, NAME), propagation=propagation
        )

    # The agent

    def manifest(
        self, name: str = "one", *, session: str = "", prompt: str | None = None, **spec: Any
    ) -> Object:
        """An AgentProcess whose session has its own name."""
        hosted: Object = {
            "controlServerRef": {"name": NAME},
            "sessionID": session or name,
            "taskID": f"task-of-{session or name}",
            "agentProfile": session or name,
            "workspacePath": str(self.world.evidence.workspaces / (session or name)),
        }
        if prompt is not None:
            hosted["prompt"] = prompt
        return {
            "apiVersion": "tenure.dev/v1alpha1",
            "kind": "AgentProcess",
            "metadata": {"name": name},
            "spec": {"session": hosted, **spec},
        }

    async def create(self, name: str = "one", **options: Any) -> Object:
        """Create one; see ``manifest``."""
        body = self.manifest(name, **options)
        return await self.world.api.create(path("agentprocesses", self.world.namespace), body)

    async def change(self, name: str = "one", **spec: Any) -> None:
        """Merge fields into its spec."""
        url = path("agentprocesses", self.world.namespace, name)
        await self.world.api.patch(url, {"spec": spec})

    async def delete(self, name: str = "one") -> None:
        """Delete it."""
        await self.world.api.delete(path("agentprocesses", self.world.namespace, name))

    async def status(self, name: str = "one") -> Object:
        """Its status now."""
        found = await self.world.api.get(path("agentprocesses", self.world.namespace, name))
        status: Object = found.get("status") or {}
        return status

    async def until(
        self, probe: Callable[[Object], Any], *, name: str = "one", within: float = WITHIN, what: str = ""
    ) -> Object:
        """The status as soon as ``probe(status)`` is true."""
        last: Object = {}

        async def look() -> Object | None:
            nonlocal last
            last = await self.status(name)
            return last if probe(last) else None

        try:
            return await eventually(look, within=within, every=0.1, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}; status {json.dumps(last)}") from None

    async def phase(self, phase: str, *, name: str = "one", within: float = WITHIN) -> Object:
        """The status as soon as it has this phase."""
        return await self.until(
            lambda status: status.get("phase") == phase, name=name, within=within, what=f"{name} is {phase}"
        )

    async def condition(self, kind: str, status: str, reason: str = "", *, name: str = "one") -> Object:
        """The condition as soon as it has this status (and reason)."""

        def look(found: Object) -> bool:
            each = condition(found, kind)
            return each.get("status") == status and reason in ("", each.get("reason"))

        seen = await self.until(look, name=name, what=f"{kind}={status} {reason}")
        return condition(seen, kind)

    async def events(self, reason: str = "") -> list[str]:
        """Notes of the Events about AgentProcesses."""
        url = f"/apis/events.k8s.io/v1/namespaces/{self.world.namespace}/events"
        items = await self.world.api.list(url)
        about = [e for e in items if e.get("regarding", {}).get("kind") == "AgentProcess"]
        return [e["note"] for e in about if reason in ("", e["reason"])]

    # What must be true in the end

    def prompts(self, session: str = "one") -> int:
        """How often the session's agents were asked anything."""
        return len(self.world.evidence.agent(session, "prompt"))

    async def rows(self, session: str = "one") -> tuple[str, str, str, list[str]]:
        """Row, session, task and turns."""
        found = await self.world.session(session)
        return found["status"], found["state"], found["task"], await self.world.turns(session)


def condition(status: Object, kind: str) -> Object:
    """One of its conditions; empty when it is not there."""
    return next((each for each in status.get("conditions", ()) if each["type"] == kind), {})
