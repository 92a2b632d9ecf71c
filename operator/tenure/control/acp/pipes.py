"""The three pipes of a child process, for an event loop: none of them ever blocks it, or grows without bound."""

import asyncio
import contextlib
from collections import deque
from typing import IO, Any

TAIL = 64 * 1024
_BREATHER = 0.005
"""Seconds for which a flood of standard error is left in its pipe: some 10 MB/s are drained, and the loop has
time for others."""


class Input(asyncio.BaseProtocol):
    """A child's standard input: written without blocking, ``drain`` waits until most of it was read."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The loop has the pipe."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """The child closed it, or we did."""
        self.closed.set()
        self._writable.set()

    def pause_writing(self) -> None:
        """The child does not read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The child reads again."""
        self._writable.set()

    def write(self, data: bytes) -> None:
        """Hand bytes to the pipe. Raises ``ConnectionError`` when it is closed."""
        if self._transport is None or self._transport.is_closing() or self.closed.is_set():
            raise ConnectionResetError("the agent's input is closed")
        self._transport.write(data)

    async def drain(self) -> None:
        """Wait until there is room. Raises ``ConnectionError`` when it is closed meanwhile."""
        await self._writable.wait()
        if self.closed.is_set():
            raise ConnectionResetError("the agent's input is closed")

    def end(self) -> None:
        """Tell the child that nothing more comes. What it did not read yet it still can."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def abort(self) -> None:
        """Drop what the child did not read."""
        transport = self._transport
        # Once is enough: the loop would close it again, and fail.
        if transport is not None and not (transport.is_closing() and not transport.get_write_buffer_size()):
            transport.abort()


class Tail(asyncio.Protocol):
    """The last bytes that came out of a pipe. It is always emptied."""

    def __init__(self, limit: int = TAIL) -> None:
        self._limit = limit
        self._kept: deque[bytes] = deque()
        self._size = 0
        self._transport: asyncio.ReadTransport | None = None
        self._resume: asyncio.TimerHandle | None = None
        self.dropped = False
        """Whether anything was left out at the beginning."""
        self.closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The loop has the pipe."""
        assert isinstance(transport, asyncio.ReadTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Keep the end of it."""
        self._kept.append(data[-self._limit :] if self._limit else b"")
        self._size += len(self._kept[-1])
        self.dropped = self.dropped or len(self._kept[-1]) < len(data)
        while self._size > self._limit:
            first = self._kept.popleft()
            excess = min(self._size - self._limit, len(first))
            self._size -= excess
            self.dropped = True
            if excess < len(first):
                self._kept.appendleft(first[excess:])
        if len(self._kept) > 256:
            self._kept = deque([b"".join(self._kept)])
        if len(data) >= 32 * 1024 and self._transport is not None:
            self._transport.pause_reading()
            self._resume = asyncio.get_running_loop().call_later(_BREATHER, self._transport.resume_reading)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody writes to it any more, or we closed it."""
        if self._resume is not None:
            self._resume.cancel()
        self.closed.set()

    def text(self) -> str:
        """What was kept, from a character's beginning on."""
        data = b"".join(self._kept)
        if self.dropped:
            # Continuation bytes of a character of which the beginning is gone.
            cut = 0
            while cut < min(3, len(data)) and 0x80 <= data[cut] < 0xC0:
                cut += 1
            data = data[cut:]
        return data.decode("utf-8", "replace")

    def close(self) -> None:
        """Read no more."""
        if self._transport is not None:
            self._transport.close()


async def write_to(pipe: IO[Any]) -> Input:
    """The writing end of a pipe, which the loop owns from now on."""
    _, protocol = await asyncio.get_running_loop().connect_write_pipe(Input, pipe)
    return protocol


async def tail_of(pipe: IO[Any], limit: int = TAIL) -> Tail:
    """The reading end of a pipe of which only the end is kept."""
    _, protocol = await asyncio.get_running_loop().connect_read_pipe(lambda: Tail(limit), pipe)
    return protocol


class Output:
    """The reading end of a pipe as a stream: what is not read stays in the pipe, and the child waits."""

    def __init__(self, reader: asyncio.StreamReader, transport: asyncio.ReadTransport) -> None:
        self.reader = reader
        self._transport = transport

    def close(self) -> None:
        """Read no more."""
        with contextlib.suppress(OSError):
            self._transport.close()


async def read_from(pipe: IO[Any], limit: int) -> Output:
    """The reading end of a pipe; ``limit`` bytes (twice that, at most) are read ahead."""
    reader = asyncio.StreamReader(limit=limit)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    return Output(reader, transport)
