"""A text that must never be shown: database URLs, credentials, keys."""

from typing import NoReturn

MASK = "***"


class Masked:
    """Wraps a secret so that printing, formatting, logging, copying or pickling it shows nothing.

    ``reveal()`` is the only way to the text, and so the only word to search for in a review. Two masked
    values are compared in constant time. Pickling raises ``TypeError``; a copy is the same object.
    ``bool()`` is false for an empty text.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        object.__setattr__(self, "_text", text)

    def reveal(self) -> str:
        """The text itself: hand it to the driver that needs it and keep it in no variable that lives on."""
        text: str = object.__getattribute__(self, "_text")
        return text

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a masked value does not change")

    def __repr__(self) -> str:
        return f"Masked({MASK!r})"

    def __str__(self) -> str:
        return MASK

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def __bool__(self) -> bool:
        return bool(self.reveal())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Masked):
            return NotImplemented
        import hmac  # here: it costs an agent's start several milliseconds, and an agent compares nothing

        return hmac.compare_digest(_encoded(self), _encoded(other))

    def __hash__(self) -> int:
        return hash((Masked, self.reveal()))

    def __copy__(self) -> "Masked":
        return self

    def __deepcopy__(self, memo: object) -> "Masked":
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a masked value is never pickled")


def _encoded(value: Masked) -> bytes:
    # "surrogatepass": a file or an environment variable may hold bytes that are no UTF-8.
    return value.reveal().encode("utf-8", "surrogatepass")
