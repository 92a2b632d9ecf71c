"""The certificate of one server: self-signed, made for its pod alone, and pinned by whoever calls it.

It is never rotated: a new pod, a new key. Nothing verifies its validity but the pin, so it outlives every pod.
"""

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from tenure.model.masked import Masked
from tenure.plan.servers.names import server_name

VALID_FOR = timedelta(days=3653)
_BACKDATED = timedelta(days=1)
"""Clocks of nodes differ."""


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """PEM texts, the key unencrypted."""

    certificate: str
    key: Masked


def fresh_identity() -> str:
    """The identity of a server that is about to be made: a DNS label that never recurs."""
    return f"cs-{secrets.token_hex(16)}"


def fresh_nonce() -> Masked:
    """A bootstrap nonce: 32 random bytes, in hex."""
    return Masked(secrets.token_hex(32))


def make_certificate(identity: str, now: datetime) -> ServerCertificate:
    """A certificate for the server with this identity, and a key of its own (EC, P-256).

    Takes about a millisecond. ``now`` is an aware time.
    """
    # Here: an operator without any server starts without the time that these take.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    # A common name has 64 characters at most; what is verified is the alternative name.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity[:64])])
    public = key.public_key()
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + VALID_FOR)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(server_name(identity))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return ServerCertificate(
        certificate.public_bytes(serialization.Encoding.PEM).decode(), Masked(private.decode())
    )
