"""Strangers have places; who takes too many loses its own oldest."""

from tenure.control.peers import Peers


class Cut:
    """A connection that knows whether it was cut."""

    def __init__(self) -> None:
        self.was_cut = False

    def __call__(self) -> None:
        self.was_cut = True


def test_a_peer_with_too_many_places_loses_its_oldest_and_no_one_elses() -> None:
    peers = Peers(per_peer=2, in_all=10)
    other, first, second, third = Cut(), Cut(), Cut(), Cut()
    peers.enter("10.0.0.2", other)
    for connection in (first, second, third):
        peers.enter("10.0.0.1", connection)
    assert [c.was_cut for c in (other, first, second, third)] == [False, True, False, False]
    assert len(peers) == 3


def test_when_all_places_are_taken_the_peer_with_the_most_pays() -> None:
    peers = Peers(per_peer=10, in_all=3)
    lone, first, second = Cut(), Cut(), Cut()
    peers.enter("10.0.0.2", lone)
    peers.enter("10.0.0.1", first)
    peers.enter("10.0.0.1", second)
    peers.enter("10.0.0.3", Cut())
    assert (lone.was_cut, first.was_cut, second.was_cut) == (False, True, False)


def test_a_place_that_is_given_up_counts_no_more_and_is_never_cut() -> None:
    peers = Peers(per_peer=1, in_all=1)
    known = Cut()
    place = peers.enter("10.0.0.1", known)
    place.give_up()
    place.give_up()
    peers.enter("10.0.0.1", Cut())
    assert not known.was_cut
    assert len(peers) == 1


def test_a_network_of_ipv6_addresses_is_one_peer_and_loopback_is_itself() -> None:
    peers = Peers(per_peer=1, in_all=10)
    first, loop = Cut(), Cut()
    peers.enter("2001:db8::1", first)
    peers.enter("::1", loop)
    peers.enter("2001:db8::2%eth0", Cut())
    assert (first.was_cut, loop.was_cut) == (True, False)


def test_peers_of_ipv4_are_told_apart_on_a_socket_of_both_kinds() -> None:
    peers = Peers(per_peer=1, in_all=10)
    one, other = Cut(), Cut()
    peers.enter("::ffff:10.0.0.1", one)
    peers.enter("::ffff:10.0.0.2", other)
    assert not one.was_cut
    peers.enter("10.0.0.1", Cut())
    assert (one.was_cut, other.was_cut) == (True, False)
