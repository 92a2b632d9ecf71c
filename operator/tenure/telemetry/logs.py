"""Logs: one JSON object on a line for machines, readable lines for a terminal; secrets masked in both.

The standard library's ``logging`` and structlog end in the same handler, so libraries' lines look like ours.
"""

import logging
import sys
from collections.abc import Mapping
from typing import IO, Any

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from tenure.model.masked import MASK, Masked
from tenure.model.redaction import redact

_QUIET = {
    # kopf repeats there, per object, what the passes say better.
    "kopf.objects": logging.WARNING,
    # Each answered probe and scrape.
    "aiohttp.access": logging.WARNING,
    "asyncio": logging.WARNING,
}
_DEPTH = 6
_RECORD_FIELDS = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {"message", "asctime"}


def configure(level: str, *, stream: IO[str] | None = None, json: bool | None = None) -> None:
    """Send all logs of this process to ``stream`` (standard error), from ``level`` on (``DEBUG`` to
    ``ERROR``).

    ``json`` None means: JSON unless the stream is a terminal. Calling it again replaces what was set up
    before.
    """
    target = sys.stderr if stream is None else stream
    as_json = not target.isatty() if json is None else json
    handler = logging.StreamHandler(target)
    handler.setFormatter(formatter(as_json=as_json, colors=target.isatty()))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name, floor in _QUIET.items():
        logging.getLogger(name).setLevel(max(floor, root.level))
    structlog.configure(
        processors=[*_shared(), structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def _shared() -> list[Processor]:
    return [
        structlog.stdlib.filter_by_level,
        structlog.contextvars.merge_contextvars,
        *_described(),
    ]


def _described() -> list[Processor]:
    return [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]


def formatter(*, as_json: bool, colors: bool) -> logging.Formatter:
    """The formatter of JSON lines or of readable ones, for a handler beside the one of ``configure``."""
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(
            colors=colors, timestamp_key="time", exception_formatter=structlog.dev.plain_traceback
        )
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_described(), _add_extras],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            mask_secrets,
            renderer,
        ],
    )


def _add_extras(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Plain values given as ``extra=`` to a standard logger; objects that libraries attach are left out."""
    record = event.get("_record")
    if record is not None:
        for key, value in record.__dict__.items():
            if key not in _RECORD_FIELDS and isinstance(value, str | int | float):
                event.setdefault(key, value)
    return event


def mask_secrets(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Replace masked values and redact all texts, keys included; anything else becomes its redacted text."""
    return {redact(str(key)): _masked(value, _DEPTH) for key, value in event.items()}


def _masked(value: Any, depth: int) -> Any:
    match value:
        case Masked():
            return MASK
        case str():  # a StrEnum becomes plain text
            return redact(str(value))
        case None | bool() | int() | float():
            return value
        case Mapping() if depth:
            return {redact(str(k)): _masked(v, depth - 1) for k, v in value.items()}
        case list() | tuple() | set() | frozenset() if depth:
            return [_masked(item, depth - 1) for item in value]
        case _:
            return redact(str(value))
