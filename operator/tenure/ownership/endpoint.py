"""Where a control server is, how to know it again, and how long to wait for it."""

import hashlib
import ipaddress
import re
import ssl
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlsplit

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")


@dataclass(frozen=True)
class Endpoint:
    """The address of one control server, and its pinned certificate.

    ``url`` has scheme, host and port and nothing else. ``https`` needs ``certificate`` (one PEM block, the
    server's self-signed leaf) and ``server_name`` (the name in it). ``http`` is for loopback only. Raises
    ``ValueError`` with a sentence.
    """

    url: str
    server_name: str = ""
    certificate: str = ""

    def __post_init__(self) -> None:
        _check_url(self.url)
        if self.tls:
            if not self.server_name:
                raise ValueError("an https endpoint needs the name in the server's certificate")
            if len(_PEM.findall(self.certificate)) != 1:
                raise ValueError("an https endpoint needs exactly one pinned certificate")
            _ = self.context, self.fingerprint
        elif not _loopback(urlsplit(self.url).hostname or ""):
            raise ValueError("plain http is for loopback addresses only")

    @property
    def tls(self) -> bool:
        """Whether the server is known by its key."""
        return self.url.startswith("https://")

    @property
    def base(self) -> str:
        """The URL without a slash at its end."""
        return self.url.rstrip("/")

    @property
    def port(self) -> int:
        """The port that is called."""
        return urlsplit(self.url).port or (443 if self.tls else 80)

    def on_port(self, port: int) -> str:
        """The base URL of the same host on another port."""
        host = urlsplit(self.url).hostname or ""
        return f"{urlsplit(self.url).scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    @cached_property
    def context(self) -> ssl.SSLContext:
        """Trusts the pinned certificate and nothing else, and checks the name."""
        try:
            return ssl.create_default_context(cafile=None, cadata=self.certificate)
        except (ssl.SSLError, ValueError):
            pass
        raise ValueError("the pinned certificate cannot be read")

    @cached_property
    def fingerprint(self) -> bytes:
        """SHA-256 of the pinned certificate: one that it *issued* is trusted by no context, but not this one."""
        try:
            der = ssl.PEM_cert_to_DER_cert(self.certificate.strip() + "\n")
        except ValueError:
            der = b""
        if not der:
            raise ValueError("the pinned certificate cannot be read")
        return hashlib.sha256(der).digest()


@dataclass(frozen=True, slots=True)
class ReadBudget:
    """How long to wait for answers, in seconds, and how often to try again, without delay.

    ``timeout`` is for one attempt at a call: connection, proof and answer together. ``launch_timeout`` is for
    the one call that starts an agent, ``stop_timeout`` for the one that ends it: agentctl takes up to 15 s.
    Raises ``ValueError`` with a sentence.
    """

    timeout: float = 2.0
    retries: int = 2
    stop_timeout: float = 17.0
    launch_timeout: float = 60.0

    def __post_init__(self) -> None:
        for name in ("timeout", "stop_timeout", "launch_timeout"):
            # Not "< 0.1": a NaN would pass.
            if not 0.1 <= getattr(self, name) <= 3600:
                raise ValueError(f"{name}: from 0.1 to 3600 seconds")
        if not 0 <= self.retries <= 10:
            raise ValueError("retries: from 0 to 10")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("an endpoint is an http or https URL with a host")
    if parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("an endpoint has scheme, host and port and nothing else")


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
