"""Handshake, rotation, confirmation and the one-way door: what a control server answers to whom."""

import pytest

from tenure.model.masked import Masked
from tenure.protocol import rotation
from tenure.protocol.claims import Renewal
from tenure.protocol.proof import new_challenge, verify
from tenure.protocol.rotation import (
    FOR_SUPERSEDED,
    NOT_WHILE_CLOSING,
    Claimed,
    Confirmed,
    Handshaken,
    Operation,
    Ownership,
    Refusal,
    Refused,
    Rotated,
)

NONCE = Masked("one-time")
HOME = "/home/of/it"
STRANGER = Masked("ff" * 32)


def credential(number: int) -> Masked:
    return Masked(f"{number:064x}")


C0, C1, C2, C3 = (credential(number) for number in range(4))


def owned() -> Ownership:
    """A server that was handshaken: C0 is the newest credential."""
    state, outcome = rotation.handshake(rotation.fresh(NONCE), NONCE, C0)
    assert outcome == Handshaken(C0)
    return state


def rotated(state: Ownership, by: Masked, to: Masked) -> Ownership:
    state, outcome = rotation.rotate(state, by, to)
    assert isinstance(outcome, Rotated)
    return state


def why(outcome: object) -> tuple[Refusal, int]:
    assert isinstance(outcome, Refused)
    assert outcome.error
    return outcome.why, outcome.status


def test_a_nonce_is_good_for_one_handshake() -> None:
    state = owned()
    again, outcome = rotation.handshake(state, NONCE, C1)
    assert why(outcome) == (Refusal.NONCE_USED, 403)
    assert again is state


@pytest.mark.parametrize("nonce", [None, Masked("")])
def test_a_handshake_without_a_nonce_is_malformed(nonce: Masked | None) -> None:
    assert why(rotation.handshake(rotation.fresh(NONCE), nonce, C0)[1]) == (Refusal.NONCE_MISSING, 400)


def test_a_wrong_nonce_is_refused_and_does_not_use_the_right_one_up() -> None:
    state, outcome = rotation.handshake(rotation.fresh(NONCE), Masked("guess"), C0)
    assert why(outcome) == (Refusal.NONCE_WRONG, 403)
    assert rotation.handshake(state, NONCE, C0)[1] == Handshaken(C0)
    assert why(rotation.handshake(owned(), Masked("guess"), C0)[1]) == (Refusal.NONCE_WRONG, 403)


def test_a_server_without_a_nonce_lets_nobody_handshake() -> None:
    state = rotation.fresh(Masked(""))
    assert why(rotation.handshake(state, NONCE, C0)[1]) == (Refusal.NONCE_WRONG, 403)


def test_before_the_handshake_nobody_is_known_and_nothing_is_proven() -> None:
    state = rotation.fresh(NONCE)
    for presented in (None, Masked(""), NONCE, C0):
        for operation in Operation:
            assert why(rotation.permit(state, presented, operation)) == (Refusal.NOT_AUTHENTICATED, 401)
    assert rotation.prove_all(state, new_challenge(), HOME) == rotation.Proven(())


def test_a_rotation_replaces_the_credential_for_everything_but_rotating_and_shutting_down() -> None:
    state = rotated(owned(), C0, C1)
    for operation in Operation:
        assert rotation.permit(state, C1, operation) is None
        verdict = rotation.permit(state, C0, operation)
        if operation in FOR_SUPERSEDED:
            assert verdict is None
        else:
            assert why(verdict) == (Refusal.SUPERSEDED, 401)
    assert {Operation.ROTATE, Operation.SHUTDOWN} == FOR_SUPERSEDED


def test_after_the_confirmation_the_superseded_credential_is_good_for_nothing() -> None:
    state, outcome = rotation.confirm(rotated(owned(), C0, C1), C1, 1)
    assert outcome == Confirmed(effective=True)
    assert rotation.acceptable(state) == (C1,)
    for operation in Operation:
        assert why(rotation.permit(state, C0, operation)) == (Refusal.NOT_AUTHENTICATED, 401)


@pytest.mark.accept("O-002.10")
def test_a_rotation_repeated_with_the_superseded_credential_gives_the_same_answer_any_number_of_times() -> (
    None
):
    state, first = rotation.rotate(owned(), C0, C1)
    assert first == Rotated(1, C1, replayed=False)
    for unused in (C2, C3):
        again, replay = rotation.rotate(state, C0, unused)
        assert replay == Rotated(1, C1, replayed=True)
        assert again is state


def test_a_replay_counts_as_a_renewal_and_closes_no_stream() -> None:
    state = rotated(owned(), C0, C1)
    _, replay = rotation.rotate(state, C0, C2)
    assert isinstance(replay, Rotated)
    assert (replay.renews, replay.replayed) == (Renewal.ROTATION, True)


def test_rotating_while_unconfirmed_makes_the_earlier_replacement_the_superseded_one() -> None:
    state = rotated(rotated(owned(), C0, C1), C1, C2)
    assert rotation.acceptable(state) == (C2, C1)
    assert why(rotation.rotate(state, C0, C3)[1]) == (Refusal.NOT_AUTHENTICATED, 401)
    assert rotation.rotate(state, C1, C3)[1] == Rotated(2, C2, replayed=True)


@pytest.mark.accept("O-002.6")
def test_ids_increase_by_rotation_and_only_confirming_the_newest_has_an_effect() -> None:
    state, ids = owned(), []
    for number in range(1, 6):
        state, outcome = rotation.rotate(state, credential(number - 1), credential(number))
        assert isinstance(outcome, Rotated)
        ids.append(outcome.rotation_id)
    assert ids == [1, 2, 3, 4, 5]
    newest = credential(5)
    for stale in (1, 2, 3, 4):
        after, outcome = rotation.confirm(state, newest, stale)
        assert (after, outcome) == (state, Confirmed(effective=False))
    for unknown in (6, 2**63 - 1, 0, -1):
        after, refused = rotation.confirm(state, newest, unknown)
        assert why(refused) == (Refusal.NEVER_ISSUED, 404)
        assert after is state
    state, outcome = rotation.confirm(state, newest, 5)
    assert outcome == Confirmed(effective=True)
    assert rotation.confirm(state, newest, 5) == (state, Confirmed(effective=False))


def test_nothing_can_be_confirmed_before_a_rotation() -> None:
    assert why(rotation.confirm(owned(), C0, 1)[1]) == (Refusal.NEVER_ISSUED, 404)


def test_only_the_newest_credential_confirms() -> None:
    state = rotated(owned(), C0, C1)
    for presented in (C0, STRANGER, None):
        after, outcome = rotation.confirm(state, presented, 1)
        assert why(outcome)[1] == 401
        assert after is state


def test_a_request_that_lost_the_race_to_another_rotation_is_told_so() -> None:
    state, _ = rotation.confirm(rotated(owned(), C0, C1), C1, 1)
    assert why(rotation.rotate(state, C0, C2, admitted=True)[1]) == (Refusal.RACED, 403)
    assert why(rotation.rotate(state, C0, C2)[1]) == (Refusal.NOT_AUTHENTICATED, 401)


def test_every_acceptable_credential_is_proven_newest_first_and_no_other() -> None:
    challenge = new_challenge()
    state = rotated(rotated(owned(), C0, C1), C1, C2)
    proven = rotation.prove_all(state, challenge, HOME)
    assert isinstance(proven, rotation.Proven)
    assert len(proven.proofs) == 2
    assert verify(proven.proofs[:1], C2, challenge, HOME)
    assert verify(proven.proofs[1:], C1, challenge, HOME)
    assert not verify(proven.proofs, C0, challenge, HOME)


@pytest.mark.parametrize("challenge", ["", "ab", "0" * 63, "0" * 65, "z" * 64])
def test_a_challenge_that_is_not_32_bytes_in_hex_is_refused(challenge: str) -> None:
    assert why(rotation.prove_all(owned(), challenge, HOME)) == (Refusal.MALFORMED, 400)


def test_whoever_holds_an_acceptable_credential_shuts_down_and_may_say_so_again() -> None:
    unconfirmed = rotated(owned(), C0, C1)
    for presented in (C0, C1):
        state, outcome = rotation.shutdown(unconfirmed, presented)
        assert outcome == rotation.ShuttingDown(first=True)
        for again in (C0, C1):
            assert rotation.shutdown(state, again) == (state, rotation.ShuttingDown(first=False))
    for presented in (None, STRANGER, NONCE):
        state, outcome = rotation.shutdown(unconfirmed, presented)
        assert why(outcome) == (Refusal.NOT_AUTHENTICATED, 401)
        assert not state.shutting_down


def test_a_server_that_shuts_down_says_so_to_its_owner_and_never_opens_again() -> None:
    state, _ = rotation.begin_shutdown(rotated(owned(), C0, C1))
    closing = (Refusal.SHUTTING_DOWN, 409)
    assert why(rotation.claim(state, C1)) == closing
    assert why(rotation.rotate(state, C0, C2)[1]) == closing
    assert why(rotation.confirm(state, C1, 1)[1]) == closing
    assert why(rotation.handshake(state, NONCE, C2)[1]) == closing
    assert why(rotation.prove_all(state, new_challenge(), HOME)) == closing
    for operation in Operation:
        verdict = rotation.permit(state, C1, operation)
        assert verdict == (Refused(Refusal.SHUTTING_DOWN) if operation in NOT_WHILE_CLOSING else None)
    assert why(rotation.claim(state, STRANGER)) == (Refusal.NOT_AUTHENTICATED, 401)
    assert rotation.begin_shutdown(state) == (state, rotation.ShuttingDown(first=False))


def test_only_claim_handshake_and_rotation_carry_a_renewal() -> None:
    state = rotated(owned(), C0, C1)
    assert {
        kind: kind.renews
        for kind in (Handshaken, Rotated, Claimed, Confirmed, rotation.Proven, rotation.ShuttingDown, Refused)
    } == {
        Handshaken: Renewal.HANDSHAKE,
        Rotated: Renewal.ROTATION,
        Claimed: Renewal.CLAIM,
        Confirmed: None,
        rotation.Proven: None,
        rotation.ShuttingDown: None,
        Refused: None,
    }
    assert rotation.claim(state, C1) == Claimed()
    assert rotation.claim(state, C0).renews is None


def test_a_credential_that_is_too_short_is_never_installed() -> None:
    for unusable in (Masked(""), Masked("ab" * 31)):
        with pytest.raises(ValueError, match="64 hexadecimal digits"):
            rotation.handshake(rotation.fresh(NONCE), NONCE, unusable)
        with pytest.raises(ValueError, match="64 hexadecimal digits"):
            rotation.rotate(owned(), C0, unusable)


def test_a_rotation_to_a_credential_in_use_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="fresh"):
        rotation.rotate(owned(), C0, C0)


def test_no_secret_is_shown_by_a_state_or_an_outcome() -> None:
    state, outcome = rotation.rotate(owned(), C0, C1)
    shown = repr(state) + repr(outcome) + repr(rotation.fresh(NONCE))
    for secret in (NONCE, C0, C1):
        assert secret.reveal() not in shown
