"""Credentials, challenges and proofs."""

import hashlib
import hmac

import pytest

from tenure.model.masked import Masked
from tenure.protocol.errors import CredentialUnavailable
from tenure.protocol.proof import (
    bearer,
    credential_of,
    is_challenge,
    new_challenge,
    new_credential,
    prove,
    usable,
    verify,
)

HOME = "/var/lib/tenure/0c5d"
MINE = Masked("a1" * 32)
OTHER = Masked("b2" * 32)


def test_a_proof_is_the_hmac_that_the_protocol_names() -> None:
    challenge = "0f" * 32
    message = challenge.encode() + b"\x00" + HOME.encode()
    expected = hmac.new(MINE.reveal().encode(), message, hashlib.sha256).hexdigest()
    assert prove(MINE, challenge, HOME) == expected
    assert expected == expected.lower()


def test_a_holder_of_the_credential_passes_whichever_place_its_proof_has() -> None:
    challenge = new_challenge()
    right, wrong = prove(MINE, challenge, HOME), prove(OTHER, challenge, HOME)
    assert verify([right], MINE, challenge, HOME)
    assert verify([wrong, right], MINE, challenge, HOME)
    assert verify([right, wrong], MINE, challenge, HOME)


@pytest.mark.parametrize("proofs", [[], [""], ["", ""], ["0" * 64], ["é" * 32], ["\ud800"]])
def test_nothing_empty_and_nothing_made_up_passes(proofs: list[str]) -> None:
    assert not verify(proofs, MINE, new_challenge(), HOME)


def test_an_echo_of_the_challenge_and_a_replay_of_an_older_proof_fail() -> None:
    first, second = new_challenge(), new_challenge()
    assert first != second
    assert not verify([second], MINE, second, HOME)
    assert not verify([prove(MINE, first, HOME)], MINE, second, HOME)


def test_a_proof_counts_for_one_home_directory_and_one_credential() -> None:
    challenge = new_challenge()
    assert not verify([prove(MINE, challenge, HOME + "2")], MINE, challenge, HOME)
    assert not verify([prove(OTHER, challenge, HOME)], MINE, challenge, HOME)


def test_a_proof_in_capitals_is_not_the_proof() -> None:
    challenge = new_challenge()
    assert not verify([prove(MINE, challenge, HOME).upper()], MINE, challenge, HOME)


def test_every_proof_is_compared_even_after_one_that_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(a) or real(a, b))
    challenge = new_challenge()
    assert verify([prove(MINE, challenge, HOME), "0" * 64], MINE, challenge, HOME)
    assert len(compared) == 2


@pytest.mark.parametrize(
    "text", ["", "a" * 63, "a" * 65, "g" * 64, "a" * 64 + "\n", " " + "a" * 64, "٣" * 64]
)
def test_what_is_not_64_hexadecimal_digits_is_no_credential_and_no_challenge(text: str) -> None:
    assert not usable(Masked(text))
    assert not is_challenge(text)
    with pytest.raises(CredentialUnavailable) as caught:
        credential_of(text)
    assert text == "" or text not in str(caught.value)
    with pytest.raises(CredentialUnavailable):
        prove(Masked(text), "0f" * 32, HOME)
    with pytest.raises(CredentialUnavailable):
        verify(["0" * 64], Masked(text), "0f" * 32, HOME)
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        prove(MINE, text, HOME)


def test_credentials_and_challenges_are_32_bytes_given_or_fresh() -> None:
    assert new_credential(bytes(32)).reveal() == new_challenge(bytes(32)) == "00" * 32
    assert new_credential() != new_credential()
    assert usable(new_credential())
    with pytest.raises(ValueError, match="32 random bytes"):
        new_challenge(bytes(31))


def test_a_home_directory_may_hold_bytes_that_are_no_text() -> None:
    assert prove(MINE, "0f" * 32, "/srv/\udcff") != prove(MINE, "0f" * 32, "/srv/")


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Basic abc", "Bearerabc", "Bearer " + "a" * 2000]
)
def test_a_header_without_a_bearer_token_presents_nothing(header: str | None) -> None:
    assert bearer(header) is None


def test_a_bearer_token_is_read_and_shown_nowhere() -> None:
    read = bearer("bearer  abc ")
    assert read == Masked("abc")
    assert "abc" not in repr(read)
