"""What may be wrong with a message or a credential. No text in here quotes what was received."""

from tenure.model.errors import TenureError


class ProtocolViolation(TenureError):
    """Bytes that are not what the protocol says: truncated, mistyped, too long, too deep, or no JSON at all.

    ``what`` names the message, ``problem`` says what is wrong with it in words of our own: a peer's bytes
    may hold provider keys, so none of them is repeated. The server answers 400 with the text; a client
    counts it as a failed read.
    """

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(f"{what}: {problem}")
        self.what = what
        self.problem = problem


class CredentialUnavailable(TenureError):
    """A credential that is empty, too short or not hexadecimal: it is never used as a key nor sent."""

    def __init__(self) -> None:
        super().__init__("the credential is unavailable: it has to be 64 hexadecimal digits")
