"""Credentials, and how a server proves that it holds one before anybody sends it.

A proof is ``hex(HMAC-SHA256(key = the credential's text, message = challenge + NUL + home directory))``, in
lower case. The challenge is 32 random bytes in hex, fresh for each attempt, so neither an echo nor a replay
verifies; the home directory binds it to one installation.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from typing import Annotated

from pydantic import PlainValidator
from pydantic_core import PydanticCustomError

from tenure.model.masked import Masked
from tenure.protocol.errors import CredentialUnavailable

RANDOM_BYTES = 32
_HEX = re.compile(r"[0-9a-fA-F]{64}")
_MAX_HEADER = 1024


def new_credential(randomness: bytes | None = None) -> Masked:
    """A credential of 32 random bytes: the ones given, or fresh ones."""
    return Masked(_hex_of(randomness))


def new_challenge(randomness: bytes | None = None) -> str:
    """A challenge of 32 random bytes: the ones given, or fresh ones. Use each for one attempt only."""
    return _hex_of(randomness)


def is_challenge(text: str) -> bool:
    """Whether the text is exactly 64 hexadecimal digits."""
    return _HEX.fullmatch(text) is not None


def usable(credential: Masked | None) -> bool:
    """Whether this is a credential: exactly 64 hexadecimal digits. Anything else is *unavailable*."""
    return credential is not None and _HEX.fullmatch(credential.reveal()) is not None


def credential_of(text: str) -> Masked:
    """The credential that was stored as ``text``. Raises ``CredentialUnavailable``."""
    credential = Masked(text)
    if not usable(credential):
        raise CredentialUnavailable
    return credential


def bearer(header: str | None) -> Masked | None:
    """What an ``Authorization`` header presents, or None when it presents nothing."""
    if header is None or len(header) > _MAX_HEADER:
        return None
    scheme, _, token = header.partition(" ")
    token = token.strip()
    return Masked(token) if scheme.lower() == "bearer" and token else None


def prove(credential: Masked, challenge: str, home_dir: str) -> str:
    """The proof that a holder of the credential gives.

    Raises ``CredentialUnavailable``, and ``ValueError`` when the challenge is not 64 hexadecimal digits: a
    shorter one would be a stranger's choice of message.
    """
    if not usable(credential):
        raise CredentialUnavailable
    if not is_challenge(challenge):
        raise ValueError("a challenge is exactly 64 hexadecimal digits")
    # A path may hold bytes that are no UTF-8; Python keeps them as surrogates.
    message = challenge.encode("ascii") + b"\0" + home_dir.encode("utf-8", "surrogateescape")
    return hmac.new(credential.reveal().encode("ascii"), message, hashlib.sha256).hexdigest()


def verify(proofs: Sequence[str], credential: Masked, challenge: str, home_dir: str) -> bool:
    """Whether any of the proofs is that of the credential, in constant time. Empty ones never match.

    Raises what ``prove`` raises: both are our own values, and wrong ones must not read as an impostor.
    """
    expected = prove(credential, challenge, home_dir).encode("ascii")
    matched = False
    for proof in proofs:
        # Every proof is compared, so that the time does not tell which of them was right.
        matched |= hmac.compare_digest(proof.encode("utf-8", "replace"), expected)
    return matched


def _hex_of(randomness: bytes | None) -> str:
    if randomness is None:
        return secrets.token_hex(RANDOM_BYTES)
    if len(randomness) != RANDOM_BYTES:
        raise ValueError(f"exactly {RANDOM_BYTES} random bytes are needed")
    return randomness.hex()


def _credential(value: object) -> Masked:
    credential = Masked(value) if isinstance(value, str) else value
    if not isinstance(credential, Masked) or not usable(credential):
        raise PydanticCustomError("no_credential", "must be 64 hexadecimal digits")
    return credential


Credential = Annotated[Masked, PlainValidator(_credential)]
"""A field of a message that holds a credential."""
