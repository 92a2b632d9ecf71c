"""Waiting for a condition with a limit: the only kind of waiting that tests do."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")


@overload
async def eventually(
    probe: Callable[[], Awaitable[T | None]], *, within: float, every: float = 0.05, what: str = ""
) -> T: ...
@overload
async def eventually(
    probe: Callable[[], T | None], *, within: float, every: float = 0.05, what: str = ""
) -> T: ...
async def eventually(probe: Callable[[], Any], *, within: float, every: float = 0.05, what: str = "") -> Any:
    """Call ``probe`` until it returns something truthy, and return that.

    ``within`` and ``every`` are seconds. An ``AssertionError`` or ``LookupError`` from the probe counts as "not yet".
    Raises ``AssertionError`` naming ``what`` and the last answer when the limit passes.
    """
    limit = time.monotonic() + within
    last: object = None
    while True:
        try:
            answer = probe()
            if isinstance(answer, Awaitable):
                answer = await answer
            if answer:
                return answer
            last = answer
        except (AssertionError, LookupError) as error:
            last = error
        if time.monotonic() > limit:
            raise AssertionError(f"not within {within} s: {what or probe!r}; last seen: {last!r}")
        await asyncio.sleep(every)
