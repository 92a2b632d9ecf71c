"""Permission requests: they wait for their answers, across detaches, and are listed again."""

from pathlib import Path

import pytest
from tests.integration.control.instances.hosting import SOON, Clock, Reader, hosting
from tests.support.agents import read_journal
from tests.support.wait import eventually

from tenure.control.instances import Timing


async def asked(reader: Reader, title: str = "May I?") -> str:
    """A turn that waits for a permission: the request's id."""
    await reader.prompt(f"permission {title}")
    event = await reader.event()
    assert (event["type"], event["title"]) == ("permission_request", title)
    assert [option["option_id"] for option in event["options"]] == ["allow", "deny"]
    return str(event["pending_id"])


@pytest.mark.parametrize("action", ["agent.permissions.respond", "agent.permissions.resolve"])
async def test_the_agent_gets_the_answer(tmp_path: Path, action: str) -> None:
    async with hosting(tmp_path) as host:
        _, reader = await host.ready()
        pending = await asked(reader)
        await reader.granted(action, {"pending_id": pending, "option_id": "deny"})
        events = await reader.until("complete")
        assert [event.get("text") for event in events] == ["permission: deny", None]


async def test_a_cancelled_request_is_answered_as_cancelled_and_told(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        _, reader = await host.ready()
        pending = await asked(reader)
        await reader.granted("agent.permissions.cancel", {"pending_id": pending})
        await reader.until("complete")
        assert read_journal(host.journal, "permission")[0]["outcome"] == "cancelled"
        assert await reader.granted("agent.permissions.list") == {"permissions": []}


async def test_a_second_answer_an_unknown_request_and_an_unknown_option_are_refused(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        _, reader = await host.ready()
        pending = await asked(reader)
        yes = {"pending_id": pending, "option_id": "allow"}
        respond = "agent.permissions.respond"
        assert await reader.refused(respond, {**yes, "option_id": "other"}) == "unknown_option"
        assert await reader.refused(respond, {"pending_id": pending}) == "unknown_option"
        assert await reader.refused(respond, {**yes, "pending_id": "nobody"}) == "not_open"
        await reader.granted(respond, yes)
        assert await reader.refused(respond, yes) == "already_answered"
        assert await reader.refused("agent.permissions.cancel", {"pending_id": pending}) == "already_answered"
        await reader.until("complete")
        assert [entry["outcome"] for entry in read_journal(host.journal, "permission")] == ["allow"]


@pytest.mark.accept("S-001.9")
async def test_an_open_request_is_listed_again_on_each_attach_before_anything_newer(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted, reader = await host.ready()
        pending = await asked(reader)
        for _ in range(2):
            await host.detached(hosted, reader)
            await hosted.event("session_info", {"title": "newer"})
            reader = await host.attached(hosted)
            first, second = await reader.event(), await reader.event()
            assert (first["type"], first["pending_id"]) == ("permission_request", pending)
            assert (first["listed_again"], first["seq"], first["title"]) == (True, 1, "May I?")
            assert second["type"] == "session_info"
        listed = (await reader.granted("agent.permissions.list"))["permissions"]
        assert [one["pending_id"] for one in listed] == [pending]
        await reader.granted("agent.permissions.respond", {"pending_id": pending, "option_id": "allow"})
        await reader.until("complete")
        await host.detached(hosted, reader)
        reader = await host.attached(hosted)
        await reader.prompt("say nothing is listed any more")
        assert (await reader.event())["type"] == "message_chunk"


@pytest.mark.accept("S-001.9")
async def test_a_request_into_a_full_buffer_waits_for_days_while_detached(tmp_path: Path) -> None:
    clock = Clock()
    async with hosting(tmp_path, clock=clock, retention_limit=1, timing=Timing(announce=0.05)) as host:
        hosted, reader = await host.ready()
        await reader.prompt("wait go\nsay fills the buffer\npermission May I?")
        await host.detached(hosted, reader)
        (host.workspace() / "go").touch()
        await eventually(lambda: hosted.outbox.paused, within=SOON)
        clock.now += 7 * 86400
        assert len(hosted.permissions) == 1
        reader = await host.attached(hosted)
        await reader.event()
        event = await reader.event()
        assert (event["type"], "listed_again" in event) == ("permission_request", False)
        yes = {"pending_id": event["pending_id"], "option_id": "allow"}
        await reader.granted("agent.permissions.respond", yes)
        await reader.until("complete")
        assert read_journal(host.journal, "permission")[0]["outcome"] == "allow"


@pytest.mark.accept("S-001.9")
async def test_while_attached_a_request_that_finds_no_place_in_time_is_cancelled_and_told(
    tmp_path: Path,
) -> None:
    clock = Clock()
    async with hosting(tmp_path, clock=clock, retention_limit=1, timing=Timing(announce=0.05)) as host:
        hosted = await host.made()
        # It acknowledges nothing: the one place stays taken.
        reader = await host.attached(hosted, ack=True)
        await reader.opened()
        await reader.prompt("say fills the buffer\npermission May I?")
        first = await reader.event()
        await eventually(lambda: len(hosted.permissions), within=SOON)
        clock.now += 0.04
        assert await reader.granted("agent.stderr") is not None
        assert len(hosted.permissions) == 1
        clock.now += 0.02
        await eventually(lambda: not len(hosted.permissions), within=SOON)
        await eventually(lambda: read_journal(host.journal, "permission"), within=SOON)
        assert read_journal(host.journal, "permission")[0]["outcome"] == "cancelled"
        await reader.acknowledge(first["seq"])
        assert (await reader.event())["type"] == "permission_cancelled"


@pytest.mark.accept("S-001.9")
async def test_the_time_of_a_request_that_found_no_place_stands_still_during_a_detach(
    tmp_path: Path,
) -> None:
    clock = Clock()
    async with hosting(tmp_path, clock=clock, retention_limit=1, timing=Timing(announce=0.05)) as host:
        hosted = await host.made()
        reader = await host.attached(hosted, ack=True)
        await reader.opened()
        await reader.prompt("say fills the buffer\npermission May I?")
        await eventually(lambda: len(hosted.permissions), within=SOON)
        clock.now += 0.04
        await host.detached(hosted, reader)
        clock.now += 7 * 86400
        again = await host.attached(hosted, ack=True)
        await again.acknowledge((await again.event())["seq"])
        event = await again.event()
        assert event["type"] == "permission_request"
        yes = {"pending_id": event["pending_id"], "option_id": "allow"}
        await again.granted("agent.permissions.respond", yes)
        await eventually(lambda: read_journal(host.journal, "permission"), within=SOON)
        assert read_journal(host.journal, "permission")[0]["outcome"] == "allow"


@pytest.mark.accept("S-001.10")
async def test_a_stop_cancels_what_is_open_and_tells_the_reader(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted, reader = await host.ready()
        pending = await asked(reader)
        assert await host.instances.stop(hosted.id)
        told = [await reader.event(), await reader.event()]
        assert [event["type"] for event in told] == ["permission_cancelled", "error"]
        assert told[0]["pending_id"] == pending
        assert await reader.closed() == 4003


async def test_cancelling_the_turn_cancels_its_requests(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        _, reader = await host.ready()
        pending = await asked(reader)
        await reader.granted("agent.cancel")
        events = await reader.until("complete")
        assert events[-1]["stop_reason"] == "cancelled"
        assert {"permission_cancelled"} <= {event["type"] for event in events}
        assert await reader.refused("agent.permissions.cancel", {"pending_id": pending}) == "already_answered"


async def test_an_agent_s_death_takes_its_requests_back(tmp_path: Path) -> None:
    raw = (
        '{"jsonrpc":"2.0","id":77,"method":"session/request_permission","params":{"sessionId":"s",'
        '"toolCall":{"toolCallId":"t","title":"x"},"options":[{"optionId":"a","name":"A","kind":"allow_once"}]}}'
    )
    async with hosting(tmp_path) as host:
        hosted, reader = await host.ready()
        await reader.prompt(f"raw {raw}\nsay right after it\nwait go\nexit 3")
        # In the order in which the agent wrote them.
        assert [(await reader.event())["type"] for _ in range(2)] == ["permission_request", "message_chunk"]
        (host.workspace() / "go").touch()
        types = [event["type"] for event in await reader.until("agent_exited")]
        await eventually(lambda: not len(hosted.permissions), within=SOON)
        if "permission_cancelled" not in types:
            assert (await reader.event())["type"] == "permission_cancelled"


async def test_an_agent_that_asks_without_end_holds_bounded_memory(tmp_path: Path) -> None:
    raw = (
        '{"jsonrpc":"2.0","id":"%d","method":"session/request_permission","params":{"sessionId":"s",'
        '"toolCall":{"toolCallId":"t","title":"x"},"options":[{"optionId":"a","name":"A","kind":"allow_once"}]}}'
    )
    flood = "\n".join(f"raw {raw % number}" for number in range(300))
    async with hosting(tmp_path) as host:
        hosted, reader = await host.ready()
        await reader.prompt(f"{flood}\nsay asked\nwait never")
        await reader.until("message_chunk")
        assert 0 < len(hosted.permissions) <= 64
        listed = (await reader.granted("agent.permissions.list"))["permissions"]
        assert len(listed) == len(hosted.permissions)
