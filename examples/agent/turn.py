"""One turn: plan, read, check by a command, ask, write; each step journalled, shown and visible for a while."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acp import RequestError
from acp.helpers import (
    plan_entry,
    start_tool_call,
    tool_diff_content,
    tool_terminal_ref,
    update_agent_message_text,
    update_plan,
    update_tool_call,
)
from acp.schema import ClientCapabilities, PermissionOption, ToolCallUpdate
from journal import Journal
from work import Order, count, find, report, total_of, understand

log = logging.getLogger("words")

OPTIONS = [
    PermissionOption(option_id="allow", name="Write it", kind="allow_once"),
    PermissionOption(option_id="reject", name="Leave it", kind="reject_once"),
]


@dataclass
class Session:
    """One session of the agent. ``running`` is the turn in hand."""

    id: str
    workspace: Path
    journal: Journal
    running: "asyncio.Task[None] | None" = None
    cancelled: bool = False


@dataclass
class Turn:
    """``done`` has the results of the steps that the journal has as finished: they are not done again."""

    session: Session
    number: int
    order: Order
    client: Any
    can: ClientCapabilities
    step_seconds: float
    done: dict[str, Any] = field(default_factory=dict)
    _plan: list[str] = field(default_factory=list)

    @classmethod
    def begin(
        cls, session: Session, text: str, client: Any, can: ClientCapabilities, step_seconds: float
    ) -> "Turn | None":
        """The turn that a prompt asks for: a new one, or the one that was cut off; None when it asks for none."""
        session.journal.say(session.id, "user", text)
        lines = session.journal.lines(session.id)
        number = max((line["turn"] for line in lines), default=0)
        done: dict[str, Any] = {}
        if text.strip().lower() == "continue" and number:
            mine = [line for line in lines if line["turn"] == number]
            if any(line["step"] == "turn" and line["event"] == "finished" for line in mine):
                return None
            text = next(line["prompt"] for line in mine if line["step"] == "turn")
            done = {line["step"]: line["result"] for line in mine if line["event"] == "finished"}
            number -= 1
        order = understand(text)
        if order is None:
            return None
        session.journal.note(session.id, number + 1, "turn", "started", prompt=text)
        return cls(session, number + 1, order, client, can, step_seconds, done)

    async def run(self) -> None:
        """Do what is left to do."""
        counts: dict[str, int] = {}
        try:
            await self._show_plan([f"Look for {self.order.pattern}"])
            files = await self._look()
            await self._show_plan(
                [
                    f"Look for {self.order.pattern}",
                    *(f"Read {name}" for name in files),
                    "Check with wc",
                    "Write the report",
                ]
            )
            for name in files:
                counts[name] = await self._read(name)
                await self._show_plan(self._plan)
            checked = await self._check(files, sum(counts.values()))
            await self._show_plan(self._plan)
            written = await self._write(report(counts, checked))
            await self._show_plan(self._plan)
            where = f"written to {self.order.report}" if written else "not written, as you wish"
            await self._say(f"{sum(counts.values())} words in {len(files)} files; the report is {where}.")
        except asyncio.CancelledError:
            self._note("turn", "cancelled")
            raise
        except Exception:
            self._note("turn", "failed")
            raise
        self._note("turn", "finished", result=None)

    async def _look(self) -> list[str]:
        async with self._step("look", f"Look for {self.order.pattern}", "search") as step:
            if step.needed:
                step.result = find(self.session.workspace, self.order)
                await self._say(f"I found {len(step.result)} files.")
        return list(step.result)

    async def _read(self, name: str) -> int:
        async with self._step(f"read {name}", f"Read {name}", "read") as step:
            if step.needed:
                try:
                    step.result = count(await self._text_of(name))
                    await self._say(f"{name}: {step.result} words.")
                except (RequestError, OSError):
                    # No text, too long for the client, or gone meanwhile: no reason to give up the others.
                    step.result = 0
                    await self._say(f"{name}: I cannot read it.")
        return int(step.result)

    async def _text_of(self, name: str) -> str:
        path = self.session.workspace / name
        if self.can.fs and self.can.fs.read_text_file:
            answer = await self.client.read_text_file(session_id=self.session.id, path=str(path))
            return str(answer.content)
        return path.read_text(encoding="utf-8", errors="replace")

    async def _check(self, files: list[str], total: int) -> int:
        async with self._step("check", "Check with wc", "execute") as step:
            if step.needed:
                step.result = (
                    total_of(await self._output_of("wc", ["-w", "--", *files], step)) if files else 0
                )
                agrees = step.result == total
                await self._say(
                    "wc counts the same." if agrees else f"wc counts {step.result} words instead."
                )
        return int(step.result)

    async def _output_of(self, command: str, args: list[str], step: "Step") -> str:
        where = str(self.session.workspace)
        if not self.can.terminal:
            process = await asyncio.create_subprocess_exec(
                command, *args, cwd=where, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
            )
            try:
                return (await process.communicate())[0].decode(errors="replace")
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        mine = {"session_id": self.session.id}
        mine["terminal_id"] = (
            await self.client.create_terminal(command=command, args=args, cwd=where, **mine)
        ).terminal_id
        try:
            await self.client.session_update(
                self.session.id, update_tool_call(step.call, content=[tool_terminal_ref(mine["terminal_id"])])
            )
            await self.client.wait_for_terminal_exit(**mine)
            return str((await self.client.terminal_output(**mine)).output)
        finally:
            # Ends the command, too, when the turn was cancelled in between.
            await self.client.release_terminal(**mine)

    async def _write(self, text: str) -> bool:
        async with self._step("write", f"Write {self.order.report}", "edit") as step:
            if step.needed:
                step.result = await self._allowed(text, step)
                if step.result:
                    await self._put(text)
        return bool(step.result)

    async def _allowed(self, text: str, step: "Step") -> bool:
        """Ask, and wait for as long as it takes."""
        path = self.session.workspace / self.order.report
        old = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None
        call = ToolCallUpdate(
            tool_call_id=step.call,
            title=f"{'Overwrite' if old is not None else 'Write'} {self.order.report}",
            kind="edit",
            status="pending",
            content=[tool_diff_content(str(path), text, old)],
        )
        self._note("write", "asked")
        answer = await self.client.request_permission(
            session_id=self.session.id, tool_call=call, options=OPTIONS
        )
        chosen = getattr(answer.outcome, "option_id", None)
        self._note("write", "answered", answer=chosen)
        return chosen == "allow"

    async def _put(self, text: str) -> None:
        path = self.session.workspace / self.order.report
        if self.can.fs and self.can.fs.write_text_file:
            await self.client.write_text_file(session_id=self.session.id, path=str(path), content=text)
            return
        # Whole or not at all, whenever this process dies.
        draft = path.with_name(f".{path.name}.draft")
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)

    @contextlib.asynccontextmanager
    async def _step(self, name: str, title: str, kind: Any) -> "AsyncIterator[Step]":
        """Around the work of a step: journal, tool call, and the time that it takes to watch."""
        step = Step(call=f"turn-{self.number}-{name}".replace(" ", "-"))
        if name in self.done:
            step.needed, step.result = False, self.done[name]
            yield step
            return
        self._note(name, "started")
        log.info("turn %d: %s", self.number, name)
        call = start_tool_call(step.call, title, kind=kind, status="in_progress")
        await self.client.session_update(self.session.id, call)
        try:
            await asyncio.sleep(self.step_seconds)
            yield step
        except asyncio.CancelledError:
            self._note(name, "cancelled")
            raise
        except Exception:
            self._note(name, "failed")
            raise
        self._note(name, "finished", result=step.result)
        self.done[name] = step.result
        await self.client.session_update(self.session.id, update_tool_call(step.call, status="completed"))

    async def _show_plan(self, titles: list[str]) -> None:
        """Tell the plan; of its steps, the first that is not done is in hand."""
        self._plan = titles
        finished = len(self.done)
        entries = [
            plan_entry(
                title,
                status="completed" if at < finished else "in_progress" if at == finished else "pending",
            )
            for at, title in enumerate(titles)
        ]
        await self.client.session_update(self.session.id, update_plan(entries))

    async def _say(self, text: str) -> None:
        self.session.journal.say(self.session.id, "agent", text)
        await self.client.session_update(self.session.id, update_agent_message_text(text + "\n"))

    def _note(self, step: str, event: str, **more: object) -> None:
        self.session.journal.note(self.session.id, self.number, step, event, **more)


@dataclass
class Step:
    """One step in hand; ``needed`` is false when an earlier process has finished it."""

    call: str
    needed: bool = True
    result: Any = None
