"""Endpoints and budgets that are refused."""

import math

import pytest
from tests.support.impostors import Certificate

from tenure.ownership.endpoint import Endpoint, ReadBudget

PINNED = Certificate("cs-1.tenure.invalid")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8080", "http://[::1]:8080/", "http://localhost:1", "http://127.8.9.10:80"]
)
def test_plain_http_is_for_loopback(url: str) -> None:
    assert not Endpoint(url).tls


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.7:8080",
        "http://example.invalid",
        "http://127.0.0.1.example.invalid:80",
        "http://0.0.0.0:80",
        "http://localhost.example.invalid",
        "http://127.0.0.1@example.invalid:80",
        "http://user:secret@127.0.0.1:80",
        "http://127.0.0.1:80/path",
        "http://127.0.0.1:80/?q",
        "http://127.0.0.1:80/#f",
        "http://127.0.0.1:99999",
        "ftp://127.0.0.1",
        "127.0.0.1:80",
        "http://",
        "",
        "https://127.0.0.1:443",
    ],
)
def test_any_other_address_is_refused_and_not_quoted(url: str) -> None:
    with pytest.raises(ValueError) as refused:
        Endpoint(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "pem"),
    [
        ("", PINNED.pem),
        ("cs-1.tenure.invalid", ""),
        ("cs-1.tenure.invalid", "no certificate"),
        ("cs-1.tenure.invalid", PINNED.pem + Certificate("other.tenure.invalid").pem),
        ("cs-1.tenure.invalid", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"),
        ("cs-1.tenure.invalid", PINNED.key_pem),
    ],
)
def test_https_needs_a_name_and_exactly_one_certificate(name: str, pem: str) -> None:
    with pytest.raises(ValueError, match="certificate"):
        Endpoint("https://10.0.0.7:8443", name, pem)


def test_a_pinned_endpoint_knows_fingerprint_ports_and_hosts() -> None:
    endpoint = Endpoint("https://10.0.0.7:8443/", "cs-1.tenure.invalid", PINNED.pem)
    assert len(endpoint.fingerprint) == 32
    assert (endpoint.base, endpoint.port) == ("https://10.0.0.7:8443", 8443)
    assert Endpoint("http://[::1]:1").on_port(2) == "http://[::1]:2"
    assert Endpoint("http://127.0.0.1").port == 80
    assert endpoint == Endpoint("https://10.0.0.7:8443/", "cs-1.tenure.invalid", PINNED.pem)


@pytest.mark.accept("S-002.13")
@pytest.mark.parametrize(
    "settings",
    [
        {"timeout": 0.0},
        {"timeout": 0.09},
        {"timeout": -1.0},
        {"timeout": math.nan},
        {"timeout": math.inf},
        {"stop_timeout": 0.0},
        {"launch_timeout": math.nan},
        {"retries": -1},
        {"retries": 11},
    ],
)
def test_a_budget_out_of_bounds_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        ReadBudget(**settings)  # type: ignore[arg-type]


@pytest.mark.accept("S-002.13")
def test_the_bounds_themselves_are_allowed() -> None:
    for timeout, retries in ((0.1, 0), (3600.0, 10)):
        budget = ReadBudget(timeout=timeout, retries=retries)
        assert (budget.timeout, budget.retries) == (timeout, retries)
