"""Where a control server listens."""

import errno
import socket
from typing import Any

import pytest
from aiohttp import web

from tenure.control import listener
from tenure.control.listener import Listener


async def _nothing(request: Any) -> web.StreamResponse:
    raise AssertionError("nobody asks")


def family_of(listening: Listener) -> socket.AddressFamily:
    found = listening._socket
    assert found is not None
    return found.family


async def test_every_address_is_of_both_families_whatever_the_systems_default_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OfOneFamily(socket.socket):
        """Like a socket where net.ipv6.bindv6only is 1."""

        def __init__(self, family: int, kind: int, *more: Any) -> None:
            super().__init__(family, kind, *more)
            if family == socket.AF_INET6:
                self.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)

    monkeypatch.setattr(listener.socket, "socket", OfOneFamily)
    listening = Listener(_nothing)
    port = listening.open("::", 0)
    try:
        assert (listening.host, family_of(listening)) == ("::", socket.AF_INET6)
        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, port), timeout=5).close()
    finally:
        await listening.aclose(0)


@pytest.mark.parametrize("code", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
async def test_where_ipv6_is_off_every_address_is_of_ipv4(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    class WithoutIpv6(socket.socket):
        """Like a socket of a machine without IPv6."""

        def __init__(self, family: int, kind: int, *more: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(code, "no IPv6 here")
            super().__init__(family, kind, *more)

    monkeypatch.setattr(listener.socket, "socket", WithoutIpv6)
    listening = Listener(_nothing)
    port = listening.open("::", 0)
    try:
        assert (listening.host, family_of(listening)) == ("0.0.0.0", socket.AF_INET)
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    finally:
        await listening.aclose(0)
    with pytest.raises(OSError, match="no IPv6"):
        Listener(_nothing).open("::1", 0)


async def test_a_port_in_use_is_no_reason_to_listen_on_ipv4_alone() -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as taken:
        taken.bind(("::", 0))
        taken.listen()
        with pytest.raises(OSError) as refused:
            Listener(_nothing).open("::", taken.getsockname()[1])
    assert refused.value.errno == errno.EADDRINUSE
