"""What is told of a ControlServer."""

from tenure.model.adoption import ADOPTION_PAIRS, AdoptionOutcome, LaunchRefusal, ReconstructionInput
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


def test_every_attempt_with_a_server_is_told_with_its_reason() -> None:
    for outcome, reason in ADOPTION_PAIRS:
        told = events.adoption_ended(outcome, reason)
        if outcome is AdoptionOutcome.NO_SERVER:
            assert told is None
            continue
        assert told is not None
        refused = outcome is AdoptionOutcome.REFUSED
        assert told.reason is (EventReason.ADOPTION_REFUSED if refused else EventReason.ADOPTED)
        assert told.warning is refused
        assert not refused or told.note.startswith(f"{reason.value}: ")


def test_a_missing_input_is_named() -> None:
    told = events.instance_stopped("i-1", "s-1", ReconstructionInput.PROVIDER_SESSION)
    assert told.reason is EventReason.INSTANCE_STOPPED
    assert "provider_session" in told.note
    assert "i-1" in told.note


def test_a_refused_launch_says_whether_it_is_tried_again() -> None:
    waiting = events.launch_refused("s-1", LaunchRefusal.RECOVERY_IN_PROGRESS)
    final = events.launch_refused("s-1", LaunchRefusal.UNSTOPPED_AGENT)
    assert "tried again" in waiting.note
    assert not waiting.warning
    assert final.warning
    assert "could not be stopped" in final.note


def test_ids_that_others_wrote_are_one_printable_line_of_limited_length() -> None:
    told = events.instance_stop_failed("i\n\x1b[31m" + "x" * 5000, "s")
    assert told.reason is EventReason.INSTANCE_STOP_FAILED
    assert "\n" not in told.note
    assert "\x1b" not in told.note
    assert len(told.note) < 400


def test_the_rest_has_a_reason_of_its_own() -> None:
    told = {
        events.adoption_attempted("p").reason,
        events.detached().reason,
        events.unowned_shutdown("p", 600.0).reason,
        events.instance_duplicate_stopped("i", "s").reason,
        events.recovery_deadline_elapsed(30, 2).reason,
        events.ownership_lost("p").reason,
    }
    assert told == {
        EventReason.ADOPTION_ATTEMPTED,
        EventReason.DETACHED,
        EventReason.UNOWNED_SHUTDOWN,
        EventReason.INSTANCE_DUPLICATE_STOPPED,
        EventReason.RECOVERY_DEADLINE_ELAPSED,
        EventReason.OWNERSHIP_LOST,
    }
    assert "600 s" in events.unowned_shutdown("p", 600.0).note
    assert "its unowned period" in events.unowned_shutdown("p", None).note


def test_a_refusal_by_the_api_server_is_told_once_for_its_words() -> None:
    before, after = ServerStatus(), stalled("forbidden")
    assert [a.reason for a in events.announcements(before, after)] == [EventReason.TEMPLATE_REJECTED]
    assert not list(events.announcements(after, after))
    assert len(list(events.announcements(after, stalled("exceeded quota")))) == 1
    assert not list(events.announcements(before, stalled("x", "ForeignChild")))
    assert not list(events.announcements(after, before))
