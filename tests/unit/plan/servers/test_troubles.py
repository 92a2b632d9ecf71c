"""What people are told of a server's pod: how it ended, why it does not start, what it said last."""

import pytest
from tests.support.adoption import POD, record, server_pod, state
from tests.support.server_status import FALSE, again, condition, facts

from tenure.model.reasons import ServerPhase
from tenure.model.server_status import ServerStatus
from tenure.plan.adoption.state import PodPhase, Record
from tenure.plan.servers.events import end_of_server, ended_server
from tenure.plan.servers.status import differs, status_of
from tenure.plan.servers.troubles import Ending, PodMention, ending_of, failure, last_words, manner

ENDED = state(pods=(server_pod(phase=PodPhase.ENDED),))
ALONE = state(owner=None, pods=(server_pod(phase=PodPhase.ENDED),))
GONE = state(owner=None, pods=())
VACANT = state(record=Record(adopted_by="new", pod_uid="pod-0"), pods=())


def mention(**fields: object) -> PodMention:
    return PodMention("main-1", POD, **fields)  # type: ignore[arg-type]


def message(status: ServerStatus, kind: str = "Ready") -> str:
    return next(c for c in status.conditions if c.type == kind).message


def test_an_end_is_told_with_reason_exit_code_and_what_the_server_said() -> None:
    assert manner(mention(reason="OOMKilled", exit_code=137)) == "OOMKilled, exit code 137"
    said = '{"ended": "terminated", "server_identity": "cs-1", "unowned_period_ms": 600000}\n'
    pod = mention(reason="Completed", exit_code=0, message=said)
    assert manner(pod) == "Completed, exit code 0, terminated"
    assert manner(mention()) == ""


@pytest.mark.parametrize(
    ("said", "ending"),
    [
        ('{"ended": "ordered"}', Ending.ORDERED),
        ('{"ended": "a word of my own"}', None),
        ('{"ended": ["ordered"]}', None),
        ("[" * 100_000, None),
        ("a line of the log", None),
        ("", None),
    ],
)
def test_only_words_of_the_protocol_are_taken_from_a_server_that_was_in_use(
    said: str, ending: Ending | None
) -> None:
    assert ending_of(said) is ending


def test_the_last_words_are_complaints_of_the_server_or_else_the_last_line() -> None:
    log = '{"event": "listening", "level": "info"}\n'
    said = f"{log}tenure control-server: --port is wrong\ntenure control-server: --home is wrong\n{log}"
    assert last_words(said) == "--port is wrong; --home is wrong"
    assert last_words("Traceback:\n  File x\nModuleNotFoundError: No module named 'tenure'\n") == (
        "ModuleNotFoundError: No module named 'tenure'"
    )
    assert last_words('{"event": "not started: agents cannot be ended", "level": "error"}\n\n') == (
        "not started: agents cannot be ended"
    )
    assert last_words(" \n") == ""


@pytest.mark.accept("M-2")
def test_last_words_are_one_short_printable_line_without_a_secret() -> None:
    said = last_words("before\n\x1b[31mtoken=0123456789 \u202e" + "x" * 5000)
    assert "0123456789" not in said
    assert said.isprintable()
    assert len(said) <= 300
    assert "\n" not in said


def test_a_server_that_fails_at_its_start_says_why_in_the_condition() -> None:
    words = "tenure control-server: --workspace-root names a directory that does not exist"
    pod = mention(reason="Error", exit_code=2, message=words, ended=True)
    found = status_of(facts(VACANT, pod=pod))
    assert condition(found, "Ready") == (FALSE, "ServerStarting")
    assert "(Error, exit code 2): --workspace-root names a directory that does not exist;" in message(found)
    assert failure(mention()) == ""
    never = mention(reason="Init:Error", detail="init container fetch failed", ended=True)
    assert "at its start (Init:Error): init container fetch failed; " in message(
        status_of(facts(VACANT, pod=never))
    )
    # The next one is being started, and why the last one did not is still told.
    later = again(found, VACANT, pod=mention(reason="ContainerCreating"), failed=pod)
    assert "(ContainerCreating); the one before ended at its start (Error, exit code 2): " in message(later)
    assert "does not exist" in message(again(found, VACANT, pod=None, failed=pod))


@pytest.mark.parametrize(
    ("reason", "detail", "words"),
    [
        (
            "ImagePullBackOff",
            'Back-off pulling image "x": not found',
            ["(ImagePullBackOff): Back-off pulling", "spec.server.image", "imagePullSecrets"],
        ),
        ("ErrImagePull", "https://me:hunter2@registry/x: 401", ["cannot be had", "https://me:***@registry"]),
        ("CreateContainerConfigError", 'secret "x" not found', ['secret "x" not found', "template"]),
        (
            "Unschedulable",
            "0/3 nodes are available: 3 Insufficient memory.",
            ["no node takes", "Insufficient memory", "spec.server.resources"],
        ),
        ("SchedulingGated", "", ["scheduling gates"]),
        ("ContainerCreating", "", ["is not in use yet (ContainerCreating)"]),
        ("", "", ["is not in use yet"]),
    ],
)
def test_what_keeps_a_pod_from_starting_is_told_with_what_to_do(
    reason: str, detail: str, words: list[str]
) -> None:
    found = status_of(facts(VACANT, pod=mention(reason=reason, detail=detail)))
    assert found.phase is ServerPhase.STARTING
    for each in words:
        assert each in message(found)
    assert "hunter2" not in message(found)


def test_a_server_that_ended_without_a_backend_is_told_as_ended() -> None:
    killed = mention(reason="OOMKilled", exit_code=137, ended=True)
    found = status_of(facts(ALONE, pod=killed))
    assert found.phase is ServerPhase.PENDING
    assert condition(found, "Ready") == (FALSE, "ServerEnded")
    assert condition(found, "Recovered") == (FALSE, "ServerEnded")
    assert "(OOMKilled, exit code 137); no backend runs" in message(found)
    # Its pod is cleared away: how it ended is not unsaid.
    assert not differs(found, again(found, GONE, pod=killed).model_copy(update={"pod": found.pod}))
    assert "its pod has gone" in message(status_of(facts(GONE, pod=None)))


def test_another_pod_says_nothing_of_the_end_of_the_one_on_record() -> None:
    found = status_of(facts(GONE, pod=PodMention("main-0", "pod-0", "Error", exit_code=1, ended=True)))
    assert "(its pod has gone)" in message(found)


def test_an_end_is_told_once_for_each_server_also_by_the_next_operator() -> None:
    alive, ended = status_of(facts()), status_of(facts(ENDED))
    assert ended_server(alive) is None
    assert ended_server(ended) == "server-1"
    assert ended_server(again(ended, ALONE)) == "server-1"
    # While the store is silent nobody knows of any server, and it is not forgotten that this was told.
    silent = again(ended, state(owner=None, record_read=False, record=None))
    assert ended_server(silent) == "server-1"
    assert ended_server(again(silent, ALONE)) == "server-1"
    other = state(record=record(identity="server-2"), pods=(server_pod(phase=PodPhase.ENDED),))
    assert ended_server(again(ended, other)) == "server-2"


KILLED = mention(reason="OOMKilled", exit_code=137, ended=True)
STOPPED = mention(reason="Completed", exit_code=0, message='{"ended": "terminated"}', ended=True)
ORDERED = mention(reason="Completed", exit_code=0, message='{"ended": "ordered"}', ended=True)
FORGED = mention(reason="Error", exit_code=137, message='{"ended": "ordered"}', ended=True)


@pytest.mark.parametrize(
    ("pod", "hosted", "warning", "words"),
    [
        (KILLED, 3, True, "(OOMKilled, exit code 137): the agents of 3 sessions are gone"),
        (KILLED, 1, True, "the agent of 1 session is gone"),
        (KILLED, 0, True, "no session had an agent there"),
        (KILLED, None, True, "how much that was is not known"),
        (None, 2, True, "(its pod has gone): the agents of 2 sessions are gone"),
        (STOPPED, 2, True, "terminated"),
        (STOPPED, None, True, "terminated"),
        (STOPPED, 0, False, "terminated"),
        (ORDERED, 2, False, "ordered"),
        (FORGED, 2, True, "exit code 137"),
    ],
)
def test_the_event_says_how_it_ended_and_what_was_lost(
    pod: PodMention | None, hosted: int | None, warning: bool, words: str
) -> None:
    told = end_of_server(pod, hosted)
    assert told.reason == "ServerEnded"
    assert told.warning is warning
    assert words in told.note
