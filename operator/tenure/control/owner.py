"""Who owns this server: the rotation machine and the claim, kept together.

Every method but ``rotate`` is synchronous, and all of them run on the event loop's thread: nothing comes
between a look at the state and the step that follows from it. That is the one lock. It includes the claim's
expiry: each operation first lets the clock speak, so that a claim which comes after the end of the unowned
period finds the door shut, however late the timer is.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenure.control.lifetime import Door, Ending
from tenure.model.masked import Masked
from tenure.protocol import claims, rotation
from tenure.protocol.claims import Renewal
from tenure.protocol.proof import new_credential
from tenure.protocol.rotation import Operation, Refusal, Refused

log = logging.getLogger(__name__)
Outcome = TypeVar(
    "Outcome", bound=rotation.Handshaken | rotation.Claimed | rotation.Rotated | rotation.Confirmed | Refused
)


class Owner:
    """Ownership of one server, from its start to its end.

    ``clock`` is monotonic, in seconds. ``close_streams`` closes every stream that is open, within a bound of
    its own; a rotation waits for it.
    """

    def __init__(
        self,
        nonce: Masked,
        period_ms: int,
        home_dir: str,
        door: Door,
        *,
        close_streams: Callable[[], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = rotation.fresh(nonce)
        self._clock = clock
        self._claim = claims.started(period_ms, clock())
        self._home_dir = home_dir
        self._door = door
        self._close_streams = close_streams
        self._closing: asyncio.Task[None] | None = None
        self._next_warning = clock()

    @property
    def shutting_down(self) -> bool:
        """Whether the decision to end has been made."""
        self.expire()
        return self._state.shutting_down

    def left(self) -> float:
        """Seconds until this server is unowned."""
        return claims.left(self._claim, self._clock())

    def expire(self) -> bool:
        """Begin the unowned shutdown if the period is over. Whether the server is shutting down."""
        if not self._state.shutting_down and claims.expired(self._claim, self._clock()):
            self.end(Ending.UNOWNED)
        return self._state.shutting_down

    def end(self, ending: Ending) -> None:
        """Begin the shutdown, for this reason unless there was one before."""
        self._state, _ = rotation.begin_shutdown(self._state)
        self._door.close(ending)

    def permit(
        self, presented: Masked | None, operation: Operation, *, admitted: bool = False
    ) -> Refused | None:
        """None when the credential may do this, at this instant.

        ``admitted``: it was permitted when the request came in, and the request waited since. A credential
        that lost its rank meanwhile lost a race (403), which is another thing than a wrong one (401).
        """
        self.expire()
        refused = rotation.permit(self._state, presented, operation)
        return _raced(refused) if refused is not None and admitted else refused

    def known(self, presented: Masked | None) -> bool:
        """Whether the credential is an acceptable one, the superseded one included."""
        return rotation.standing(self._state, presented) is not None

    def handshake(self, nonce: Masked | None) -> rotation.Handshaken | Refused:
        """Exchange the bootstrap nonce for the first credential."""
        self.expire()
        self._state, outcome = rotation.handshake(self._state, nonce, new_credential())
        if isinstance(outcome, Refused):
            self._tell_of(outcome)
        else:
            log.info("handshaken")
        return self._renewed(outcome)

    def prove(self, challenge: str) -> rotation.Proven | Refused:
        """Proofs for whoever asks. What is no challenge is refused, after a shutdown in progress is."""
        self.expire()
        return rotation.prove_all(self._state, challenge, self._home_dir)

    def claim(self, presented: Masked | None) -> rotation.Claimed | Refused:
        """Renew the claim."""
        self.expire()
        return self._renewed(rotation.claim(self._state, presented))

    def confirm(self, presented: Masked | None, rotation_id: int) -> rotation.Confirmed | Refused:
        """Drop the superseded credential. The caller has permitted the operation before it read the body."""
        self.expire()
        self._state, outcome = rotation.confirm(self._state, presented, rotation_id)
        if isinstance(outcome, Refused):
            return _raced(outcome)
        log.info("confirmed", extra={"rotation_id": rotation_id, "effective": outcome.effective})
        return outcome

    async def rotate(self, presented: Masked | None) -> rotation.Rotated | Refused:
        """Replace the credential. It is in force at once, and told only when every older stream is closed.

        A replay may come while the first answer still waits for the streams: it waits for them as well.
        """
        self.expire()
        self._state, outcome = rotation.rotate(self._state, presented, new_credential())
        self._renewed(outcome)
        if isinstance(outcome, Refused):
            return outcome
        log.info("rotated", extra={"rotation_id": outcome.rotation_id, "replayed": outcome.replayed})
        if not outcome.replayed:
            self._closing = asyncio.create_task(self._close_after(self._closing), name="close streams")
        if self._closing is not None:
            # Shielded: a caller that hangs up does not keep the streams open.
            await asyncio.shield(self._closing)
        return outcome

    def shutdown(self, presented: Masked | None) -> rotation.ShuttingDown | Refused:
        """Stop by order."""
        self.expire()
        self._state, outcome = rotation.shutdown(self._state, presented)
        if not isinstance(outcome, Refused):
            self._door.close(Ending.ORDERED)
        return outcome

    async def aclose(self) -> None:
        """Wait for what a rotation began."""
        if self._closing is not None:
            await asyncio.gather(self._closing, return_exceptions=True)

    async def _close_after(self, before: "asyncio.Task[None] | None") -> None:
        if before is not None:
            await asyncio.gather(before, return_exceptions=True)
        try:
            await self._close_streams()
        except Exception as error:
            # The rotation stands: not to answer it would lock its owner out, now and at every retry.
            log.error("closing the streams failed", exc_info=error)

    def _tell_of(self, refused: Refused) -> None:
        """A nonce that was used already, or a wrong one, may be a theft that came too late, or too early. Now
        and then only: whoever tries a million is not to fill the log."""
        if refused.why in _SUSPICIOUS and self._clock() >= self._next_warning:
            self._next_warning = self._clock() + _WARN_SECONDS
            log.warning("a handshake was refused: %s", refused.error, extra={"why": refused.why.value})

    def _renewed(self, outcome: Outcome) -> Outcome:
        if isinstance(outcome.renews, Renewal):
            self._claim = claims.renewed(self._claim, outcome.renews, self._clock())
        return outcome


_WARN_SECONDS = 10.0
_SUSPICIOUS = frozenset({Refusal.NONCE_USED, Refusal.NONCE_WRONG})
_RANK = frozenset({Refusal.NOT_AUTHENTICATED, Refusal.SUPERSEDED})


def _raced(refused: Refused) -> Refused:
    return Refused(Refusal.RACED) if refused.why in _RANK else refused
