"""What is told of a ControlServer."""

from tenure.model.reasons import ConditionStatus, EventReason
from tenure.model.server_status import ServerStatus
from tenure.plan.servers import events


def stalled(message: str, reason: str = "TemplateRejected") -> ServerStatus:
    """A status with this condition."""
    return ServerStatus.model_validate(
        {
            "conditions": [
                {
                    "type": "Stalled",
                    "status": ConditionStatus.TRUE,
                    "reason": reason,
                    "message": message,
                    "lastTransitionTime": "2026-11-30T12:00:00Z",
                }
            ]
        }
    )


def test_a_refusal_by_the_api_server_is_told_once_for_its_words() -> None:
    before, after = ServerStatus(), stalled("forbidden")
    assert [a.reason for a in events.announcements(before, after)] == [EventReason.TEMPLATE_REJECTED]
    assert not list(events.announcements(after, after))
    assert len(list(events.announcements(after, stalled("exceeded quota")))) == 1
    assert not list(events.announcements(before, stalled("x", "ForeignChild")))
    assert not list(events.announcements(after, before))
