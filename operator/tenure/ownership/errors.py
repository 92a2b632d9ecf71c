"""What may go wrong with a control server. No text in here holds anything that a server sent."""

from enum import StrEnum

from tenure.model.errors import TenureError


class ControlError(TenureError):
    """Any failure of a call to a control server. ``retries`` is how many were used up beside the first try."""

    retries: int = 0


class NoAnswer(ControlError):
    """Nothing answered, or not in time, or the answer was cut off. It says nothing about what the server did."""


class BadAnswer(ControlError):
    """Something answered, and not what the protocol says: mistyped, too long, too deep, a redirect, no HTTP.

    A failed read like ``NoAnswer``. ``problem`` is in words of our own.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(f"the answer is no answer of a control server: {problem}")
        self.problem = problem


class Doubt(StrEnum):
    """Why a server is not the one that it should be."""

    CERTIFICATE = "certificate"
    IDENTITY = "identity"
    PROOF = "proof"


_DOUBTS = {
    Doubt.CERTIFICATE: "it does not present the certificate that was recorded",
    Doubt.IDENTITY: "it does not tell the identity that was recorded",
    Doubt.PROOF: "it did not prove that it holds our credential",
}


class ForeignServer(ControlError):
    """The server at this address did not prove to be ours. No byte of a credential was sent to it.

    ``certain`` is false when it gave no answer of the protocol at all, where trying again may help.
    """

    def __init__(self, doubt: Doubt, *, certain: bool = True) -> None:
        super().__init__(f"the server is not ours: {_DOUBTS[doubt]}")
        self.doubt = doubt
        self.certain = certain


class NotAccepted(ControlError):
    """The server does not accept what was presented to it: 401, 403.

    ``superseded``: it had proven that it knew this credential, so a newer one has taken its place.
    """

    def __init__(self, *, superseded: bool) -> None:
        super().__init__(
            "the credential was superseded: somebody else owns this server now"
            if superseded
            else "the server does not accept what was presented to it"
        )
        self.superseded = superseded


class ShuttingDown(ControlError):
    """The server is shutting down, which cannot be undone: 409."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down")


SESSION_IN_USE = "session_in_use"
ID_IN_USE = "id_in_use"
SERVER_FULL = "server_full"
CODES = frozenset({SESSION_IN_USE, ID_IN_USE, SERVER_FULL})
"""Why a creation is a conflict; any other 409 is a shutdown."""


class Refused(ControlError):
    """Any other status. ``code`` is a reason that the protocol knows, or empty: a peer's text is not kept."""

    def __init__(self, status: int, code: str = "") -> None:
        super().__init__(f"the server refused with status {status}" + (f" ({code})" if code else ""))
        self.status = status
        self.code = code


class Declined(ControlError):
    """A request on a stream was answered with an error. ``code`` is the server's: do not log it unread."""

    def __init__(self, code: str) -> None:
        super().__init__("the server declined a request on the stream")
        self.code = code

    @property
    def stopped(self) -> bool:
        """Nothing was refused: the instance is being stopped, with its server perhaps. Source: the protocol page."""
        return self.code in ("stopping", "stopped")

    @property
    def gone(self) -> bool:
        """The same, or the agent has ended by itself: there is none that a request could be passed on to."""
        return self.stopped or self.code == "exited"


class StreamClosed(ControlError):
    """The stream is over; ``ControlStream.end`` says why."""

    def __init__(self) -> None:
        super().__init__("the stream is closed")
