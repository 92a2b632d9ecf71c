"""What a reader may ask for on a stream.

Requests that ask the agent for an answer, and prompts, wait for each other, per instance and in the order in
which they came (``IN_TURN``). All others overtake them: a session that is slow to open holds up neither a
cancellation nor the answer to a permission request.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

import structlog
from pydantic import JsonValue

from tenure.control.acp import AgentFailed
from tenure.control.instances.config import ActionRefused
from tenure.protocol import frames
from tenure.protocol.errors import ProtocolViolation
from tenure.protocol.frames import (
    Action,
    ErrorAnswer,
    ErrorDetails,
    EventsAcknowledged,
    LoadSession,
    PermissionAnswer,
    Prompt,
    PromptAccepted,
    Request,
    Response,
    SessionOpened,
    StderrTail,
    payload_of,
)
from tenure.protocol.wire import Body, fits_inside_another

if TYPE_CHECKING:
    from tenure.control.instances.hosted import Hosted

IN_TURN = frozenset(
    {Action.INITIALIZE, Action.SESSION_NEW, Action.SESSION_LOAD, Action.SESSION_RESET, Action.PROMPT}
)

Answer = Response | ErrorAnswer
_log = structlog.get_logger(__name__)


async def perform(hosted: "Hosted", request: Request) -> Answer:
    """The answer to a request; it never raises for what a peer or an agent does."""
    try:
        payload = await _asked(hosted, request)
    except ActionRefused as refused:
        return _refused(request, refused.code, refused.message, refused.details)
    except AgentFailed as failed:
        return _refused(request, failed.code, failed.message, failed.details)
    except ProtocolViolation as violation:
        return _refused(request, "malformed_payload", str(violation), None)
    except Exception as error:  # noqa: BLE001
        # A fault of ours: whoever asked is not left without an answer.
        _log.error("action failed", instance=hosted.id, error=type(error).__name__)
        return _refused(request, "internal", "The control server failed at this request.", None)
    answer = Response(id=request.id, action=request.action, payload=payload, timestamp=datetime.now(UTC))
    if not fits_inside_another(answer):
        return _refused(
            request, "answer_too_long", "The answer is longer or deeper than a frame may be.", None
        )
    return answer


def acknowledged_by(payload: JsonValue) -> int:
    """The ``seq`` that ``agent.events.ack`` acknowledges. Raises ``ProtocolViolation``."""
    return payload_of(EventsAcknowledged, payload).seq


async def _asked(hosted: "Hosted", request: Request) -> JsonValue:
    match request.action:
        case Action.INITIALIZE:
            return await hosted.initialize()
        case Action.SESSION_NEW | Action.SESSION_RESET:
            return _plain(SessionOpened(session_id=await hosted.new_session()))
        case Action.SESSION_LOAD:
            wanted = payload_of(LoadSession, request.payload).session_id
            await hosted.load_session(wanted)
            return _plain(SessionOpened(session_id=wanted))
        case Action.PROMPT:
            turn_id = hosted.prompt(payload_of(Prompt, request.payload))
            return _plain(PromptAccepted(turn_id=turn_id))
        case Action.CANCEL:
            await hosted.cancel()
            return {}
        case Action.STDERR:
            return _plain(StderrTail(lines=hosted.stderr()))
        case Action.PERMISSIONS_LIST:
            return _plain(hosted.permissions.listing())
        case Action.PERMISSIONS_RESPOND | Action.PERMISSIONS_RESOLVE:
            hosted.permissions.answer(payload_of(PermissionAnswer, request.payload))
            return {}
        case Action.PERMISSIONS_CANCEL:
            answer = payload_of(PermissionAnswer, request.payload)
            hosted.permissions.answer(PermissionAnswer(pending_id=answer.pending_id, cancelled=True))
            return {}
        case _:
            raise ActionRefused("unknown_action", "This server does not know this action.")


def _plain(body: Body) -> JsonValue:
    return cast("JsonValue", body.model_dump(mode="json", exclude_none=True))


def _refused(request: Request, code: str, message: str, details: JsonValue) -> ErrorAnswer:
    at = datetime.now(UTC)
    refusal = frames.refusal(request, code, message, at)
    if details is None:
        return refusal
    explained = refusal.model_copy(
        update={"payload": ErrorDetails(code=code, message=message, details=details)}
    )
    return explained if fits_inside_another(explained) else refusal
