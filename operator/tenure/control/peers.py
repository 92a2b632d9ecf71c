"""Who may hold connections open without having shown a credential, and how many.

A stranger's connection costs a place until it shows an acceptable credential. When a peer takes more places
than it may, its own oldest connection is cut, not its newest refused: whoever asks at once is answered, and
whoever holds connections open to be in the way is in nobody's.
"""

import ipaddress
from collections.abc import Callable

PER_PEER = 256
IN_ALL = 1024


class Place:
    """One connection's place among the strangers'."""

    def __init__(self, peers: "Peers", peer: str, cut: Callable[[], object]) -> None:
        self._peers = peers
        self.peer = peer
        self.cut = cut
        """Ends the connection; what it does changes as the connection comes into being."""

    def give_up(self) -> None:
        """The connection ended, or is no stranger's any more. Any number of times."""
        self._peers.forget(self)


class Peers:
    """The places of all strangers."""

    def __init__(self, per_peer: int = PER_PEER, in_all: int = IN_ALL) -> None:
        self._per_peer = per_peer
        self._in_all = in_all
        # Ordered by arrival, as dictionaries are.
        self._all: dict[Place, None] = {}
        self._of: dict[str, dict[Place, None]] = {}

    def enter(self, address: str, cut: Callable[[], object]) -> Place:
        """A place for a new connection from ``address``; may cut an older one for it."""
        peer = _network(address)
        mine = self._of.get(peer, {})
        if len(mine) >= self._per_peer:
            self._cut_oldest(mine)
        elif len(self._all) >= self._in_all:
            # From whom there are most: the others are not to pay for a crowd.
            self._cut_oldest(max(self._of.values(), key=len))
        place = Place(self, peer, cut)
        self._all[place] = None
        self._of.setdefault(peer, {})[place] = None
        return place

    def forget(self, place: Place) -> None:
        """The place is free."""
        self._all.pop(place, None)
        mine = self._of.get(place.peer)
        if mine is not None:
            mine.pop(place, None)
            if not mine:
                del self._of[place.peer]

    def __len__(self) -> int:
        return len(self._all)

    def _cut_oldest(self, places: dict[Place, None]) -> None:
        oldest = next(iter(places))
        self.forget(oldest)
        oldest.cut()


def _network(address: str) -> str:
    """Who counts as one: an IPv4 address, or the network of an IPv6 one, which has addresses to spare."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        # How a socket of both kinds sees a peer of the older one.
        return str(parsed.ipv4_mapped)
    if isinstance(parsed, ipaddress.IPv6Address) and not parsed.is_loopback:
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
