"""What a read gave: a value, the certainty that there is none, or nothing after every retry."""

from dataclasses import dataclass
from typing import Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Got(Generic[T_co]):
    """The source answered with a value; it may be an empty one."""

    value: T_co


@dataclass(frozen=True, slots=True)
class Absent:
    """The source answered, and has no such value."""


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The source did not answer, within the time-out and the retries of one read. Nothing follows about the value."""


ABSENT = Absent()
EXHAUSTED = Exhausted()

Read = Got[T_co] | Absent | Exhausted
