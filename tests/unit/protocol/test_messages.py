"""Bodies: what is read, what is refused, and what is shown."""

import json
import pickle
import traceback
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic_core import PydanticSerializationError
from tests.unit.protocol import bodies
from tests.unit.protocol.bodies import CREDENTIAL, KEY, instance

from tenure.model.masked import Masked
from tenure.protocol import messages, wire
from tenure.protocol.errors import ProtocolViolation
from tenure.protocol.messages import (
    AckRequest,
    ConfirmRequest,
    CreateRequest,
    ErrorBody,
    HandshakeAnswer,
    Health,
    Identity,
    Instance,
    Instances,
    InstancesWithEnvironment,
    InstanceWithEnvironment,
    ProveAnswer,
    ProveRequest,
    RotateAnswer,
)
from tenure.protocol.wire import Body, parse

IDENTITY = {"server_identity": "s", "capabilities": ["agent-survival.v1"], "unowned_period_ms": 600_000}


def refused(kind: type[Body], body: Any) -> str:
    with pytest.raises(ProtocolViolation) as caught:
        parse(kind, body if isinstance(body, bytes) else bodies.wire(body))
    return str(caught.value)


def test_an_identity_is_three_fields_of_which_none_may_be_missing() -> None:
    read = parse(Identity, bodies.wire(IDENTITY))
    assert json.loads(read.to_wire()) == IDENTITY
    for field in IDENTITY:
        assert refused(Identity, {**IDENTITY, field: None}).startswith(f"Identity: {field} is not valid")
        rest = {key: value for key, value in IDENTITY.items() if key != field}
        assert refused(Identity, rest) == f"Identity: {field} is missing"
    assert refused(Identity, {**IDENTITY, "server_identity": ""})
    assert refused(Identity, {**IDENTITY, "unowned_period_ms": 0})


def test_an_enumeration_is_an_object_with_a_list_and_nothing_else_passes_for_none() -> None:
    assert parse(Instances, b'{"instances":[]}').instances == ()
    for body in (
        b"[]",
        bodies.wire([instance()]),
        b"{}",
        b'{"instances":null}',
        b'{"instances":{}}',
        b"null",
    ):
        assert refused(Instances, body)


def test_one_unreadable_instance_makes_the_enumeration_unreadable() -> None:
    assert refused(Instances, {"instances": [instance(), instance(port="8090")]})


def test_an_instance_is_read_without_its_environment_unless_asked() -> None:
    body = bodies.wire({"instances": [instance()]})
    plain = parse(Instances, body)
    assert not hasattr(plain.instances[0], "env")
    assert KEY not in repr(plain) + str(plain.model_dump())
    asked = parse(InstancesWithEnvironment, body).instances[0]
    assert asked.env == {"PROVIDER_KEY": Masked(KEY), "EMPTY": Masked("")}
    assert KEY not in repr(asked) + str(asked) + str(asked.model_dump())
    assert "PROVIDER_KEY" not in repr(asked)


def test_an_environment_that_is_mistyped_harms_only_whoever_asks_for_it() -> None:
    body = bodies.wire(instance(env={"A": 1}))
    assert parse(Instance, body).id == "5d0c"
    assert refused(InstanceWithEnvironment, body) == "InstanceWithEnvironment: env is not valid (no_text)"


def test_fields_that_agentctl_leaves_out_when_empty_are_empty() -> None:
    lean = parse(
        InstanceWithEnvironment,
        bodies.wire(
            instance(
                env=None, session_id=None, task_id=None, workspace_source_roots=None, provider_session_id=None
            )
        ),
    )
    assert (lean.env, lean.session_id, lean.task_id) == ({}, "", "")
    assert (lean.workspace_source_roots, lean.provider_session_id) == ((), "")


@pytest.mark.parametrize(
    "id_", ["", "../x", "a/b", "a?b", "a b", "a%2fb", ".", "..", "ü", "a" * 129, "a\n", 7]
)
def test_an_instance_id_that_would_change_an_address_is_refused(id_: Any) -> None:
    assert refused(Instance, instance(id=id_))


@pytest.mark.parametrize("value", ["1", 1.0, 1.5, True, None, 0, -1, 2**63, 10**400, [1], {}])
@pytest.mark.parametrize(("kind", "field"), [(ConfirmRequest, "rotation_id"), (AckRequest, "turn_id")])
def test_an_id_is_a_whole_number_from_1_that_fits_64_bits(kind: type[Body], field: str, value: Any) -> None:
    assert refused(kind, {field: value})
    assert refused(kind, {}) == f"{kind.__name__}: {field} is missing"


@pytest.mark.parametrize("value", [1, 2**63 - 1])
def test_the_smallest_and_the_largest_id_are_read(value: int) -> None:
    assert parse(ConfirmRequest, bodies.wire({"rotation_id": value})).rotation_id == value


@pytest.mark.parametrize("credential", ["", "ab", CREDENTIAL[:-1], CREDENTIAL + "0", 7, None, "z" * 64])
def test_an_answer_without_a_whole_credential_is_a_failed_read(credential: Any) -> None:
    assert refused(RotateAnswer, {"rotation_id": 1, "credential": credential})
    assert refused(HandshakeAnswer, {"token": credential})


@pytest.mark.parametrize("challenge", ["", "0" * 63, "0" * 65, "0" * 63 + "g", "0" * 64 + "\n", 0])
def test_a_challenge_is_exactly_64_hexadecimal_digits(challenge: Any) -> None:
    assert refused(ProveRequest, {"challenge": challenge})
    assert parse(ProveRequest, bodies.wire({"challenge": "0aF9" * 16}))


def test_at_most_two_proofs_are_read() -> None:
    assert parse(ProveAnswer, bodies.wire({"proofs": []})).proofs == ()
    assert refused(ProveAnswer, {"proofs": ["a" * 64] * 3})
    assert refused(ProveAnswer, {})


def test_an_instance_is_not_created_without_a_workspace() -> None:
    assert refused(CreateRequest, {}) == "CreateRequest: workspace_path is missing"
    assert refused(CreateRequest, {"workspace_path": ""})
    read = parse(CreateRequest, b'{"workspace_path":"/w","mcp_servers":[{"name":"x"}],"auto_approve":true}')
    assert (read.workspace_path, read.id, read.protocol, read.env) == ("/w", None, "acp", {})


@pytest.mark.parametrize(
    "changes",
    [
        {"workspace_path": "/w\0x"},
        {"agent_command": "a\0b"},
        {"env": {"A": "b\0c"}},
        {"env": {"A\0": "b"}},
        {"env": {"": "b"}},
        {"env": {"A=B": "c"}},
        {"env": {"A": None}},
        {"env": [["A", "b"]]},
        {"workspace_source_roots": "/src"},
        {"workspace_source_roots": ["/src\0"]},
        {"id": ""},
        {"auto_start": 1},
        {"workspace_path": "/" + "w" * 5000},
    ],
)
def test_what_no_process_could_be_started_with_is_refused_before_one_is(changes: dict[str, Any]) -> None:
    assert refused(CreateRequest, {"workspace_path": "/w", **changes})


def test_a_request_reveals_its_secrets_on_the_wire_and_nowhere_else() -> None:
    request = CreateRequest(workspace_path="/w", env={"PROVIDER_KEY": Masked(KEY)})
    assert json.loads(request.to_wire())["env"] == {"PROVIDER_KEY": KEY}
    assert KEY not in repr(request) + str(request) + str(request.model_dump())
    with pytest.raises(PydanticSerializationError):
        request.model_dump_json()
    with pytest.raises(TypeError):
        pickle.dumps(request)


def test_a_body_is_frozen() -> None:
    with pytest.raises(Exception, match="frozen"):
        parse(ConfirmRequest, b'{"rotation_id":1}').rotation_id = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"rotation_id":', b'{"rotation_id":1', b'{"rotation_id":1}}', b"\xff\xfe", b"nul"]
)
def test_a_truncated_or_garbled_body_is_refused(body: bytes) -> None:
    assert refused(ConfirmRequest, body)


def test_a_body_that_is_too_long_is_refused_unread() -> None:
    padded = b'{"rotation_id":1,"x":"' + b"a" * wire.SMALL + b'"}'
    assert refused(ConfirmRequest, padded) == f"ConfirmRequest: it is longer than {wire.SMALL} bytes"
    assert parse(ConfirmRequest, padded.replace(b"a" * 100, b""))


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_a_body_is_nested_64_deep_and_no_deeper(opening: bytes, closing: bytes) -> None:
    def nested(depth: int) -> bytes:
        return b'{"rotation_id":1,"x":' + opening * depth + b"1" + closing * depth + b"}"

    assert parse(ConfirmRequest, nested(wire.MAX_DEPTH - 1))
    assert "nested deeper" in refused(ConfirmRequest, nested(wire.MAX_DEPTH))
    assert refused(ConfirmRequest, nested(9_000))
    assert refused(ConfirmRequest, opening * 9_000)


def test_brackets_inside_of_texts_are_not_nesting() -> None:
    text = '[{"\\' * 5_000
    assert parse(ErrorBody, bodies.wire({"error": text[:4_000]})).error == text[:4_000]


@pytest.mark.parametrize("token", [b"NaN", b"Infinity", b"-Infinity"])
def test_numbers_that_are_not_json_are_refused_and_words_are_not(token: bytes) -> None:
    assert "not JSON" in refused(ConfirmRequest, b'{"rotation_id":1,"x":' + token + b"}")
    assert parse(ErrorBody, b'{"error":"NaN Infinity"}')


@pytest.mark.parametrize(
    "hostile", [b'"' * 4_000_000, b'"\\' * 2_000_000, b"[" * 4_000_000, b"[]," * 1_000_000]
)
def test_hostile_bytes_cost_little_time(hostile: bytes) -> None:
    import time

    begun = time.process_time()
    with pytest.raises(ProtocolViolation):
        parse(Instances, hostile)
    # Quadratic work on four megabytes would take hours.
    assert time.process_time() - begun < 3


def test_no_refusal_repeats_what_was_received_not_even_in_a_traceback() -> None:
    for kind, body in (
        (InstanceWithEnvironment, instance(env={f"A={KEY}": "x"})),
        (InstanceWithEnvironment, instance(env={KEY: 1})),
        (RotateAnswer, {"rotation_id": 1, "credential": KEY}),
        (ConfirmRequest, {"rotation_id": KEY}),
        (Instances, [KEY]),
    ):
        try:
            parse(kind, bodies.wire(body))
        except ProtocolViolation as error:
            assert error.__context__ is None
            assert KEY not in "".join(traceback.format_exception(error)) + repr(error)
        else:
            pytest.fail("it was read")
    with pytest.raises(ProtocolViolation) as caught:
        parse(ConfirmRequest, f'{{"rotation_id": {KEY}'.encode())
    assert KEY not in repr(caught.value)


def test_times_are_told_in_utc() -> None:
    told = Health(timestamp=datetime(2026, 5, 1, 10, tzinfo=UTC)).to_wire()
    assert told == b'{"status":"ok","timestamp":"2026-05-01T10:00:00Z"}'
    assert parse(Health, told).timestamp == datetime(2026, 5, 1, 10, tzinfo=UTC)


def test_fixed_answers_are_what_the_protocol_says() -> None:
    assert messages.ConfirmAnswer().to_wire() == b'{"status":"confirmed"}'
    assert messages.ClaimAnswer().to_wire() == b'{"status":"claimed"}'
    assert messages.ShutdownAnswer().to_wire() == b'{"status":"shutting_down"}'
    assert messages.AckAnswer().to_wire() == b'{"status":"acked"}'
    assert messages.OutcomeAnswer(retained=False).to_wire() == b'{"retained":false}'
    for kind in (messages.ConfirmAnswer, messages.ClaimAnswer, messages.ShutdownAnswer, messages.AckAnswer):
        assert refused(kind, {"status": "something else"})


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "[" * 200, "{" * 200, 'a \\" [NaN'])
def test_a_text_may_hold_what_a_number_may_not_be_and_brackets(text: str) -> None:
    body = json.dumps({"rotation_id": 1, "text": text}).encode()
    assert parse(ConfirmRequest, body).rotation_id == 1
    assert wire.fits(body, wire.LARGE)


def test_brackets_in_a_text_hide_no_nesting() -> None:
    deep = b'{"text":"]]]","x":' + b"[" * wire.MAX_DEPTH + b"]" * wire.MAX_DEPTH + b"}"
    assert not wire.fits(deep, wire.LARGE)
    assert "nested deeper" in refused(ConfirmRequest, b'{"rotation_id":1,' + deep[1:])
