"""The certificate of one server."""

import re
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from tenure.control.tls import server_context
from tenure.operator.servers.certificate import fresh_identity, fresh_nonce, make_certificate
from tenure.ownership.endpoint import Endpoint
from tenure.plan.servers.names import server_name

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def test_a_server_accepts_it_and_a_client_pins_it(tmp_path: Path) -> None:
    identity = fresh_identity()
    made = make_certificate(identity, NOW)
    (tmp_path / "tls.crt").write_text(made.certificate)
    (tmp_path / "tls.key").write_text(made.key.reveal())
    assert isinstance(server_context(tmp_path / "tls.crt", tmp_path / "tls.key"), ssl.SSLContext)
    endpoint = Endpoint("https://10.0.0.1:8443", server_name(identity), made.certificate)
    assert endpoint.fingerprint


def test_it_names_the_server_and_outlives_every_pod() -> None:
    read = x509.load_pem_x509_certificate(make_certificate("cs-1", NOW).certificate.encode())
    names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["cs-1.tenure.invalid"]
    assert read.not_valid_after_utc >= NOW + timedelta(days=3650)
    assert read.not_valid_before_utc < NOW
    key = read.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"
    assert read.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False


def test_the_longest_identity_is_one_too() -> None:
    make_certificate("a" * 63, NOW)


def test_no_two_servers_share_a_key_an_identity_or_a_nonce() -> None:
    assert make_certificate("cs-1", NOW).key != make_certificate("cs-1", NOW).key
    assert fresh_identity() != fresh_identity()
    assert fresh_nonce() != fresh_nonce()


def test_an_identity_is_a_dns_label_and_a_key_is_never_shown() -> None:
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fresh_identity())
    made = make_certificate("cs-1", NOW)
    assert made.key.reveal().splitlines()[1] not in repr(made)
