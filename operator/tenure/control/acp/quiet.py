"""The library logs on the root logger, and quotes what it received: none of that comes out."""

import logging
import os

import acp

_LIBRARY = os.path.dirname(acp.__file__) + os.sep


def _not_the_library(record: logging.LogRecord) -> bool:
    return not record.pathname.startswith(_LIBRARY)


def quieten() -> None:
    """Drop what the library logs. A filter of the root logger sees what is logged *on* it, and nothing that
    other loggers hand up to its handlers. Any number of times."""
    root = logging.getLogger()
    if _not_the_library not in root.filters:
        root.addFilter(_not_the_library)
