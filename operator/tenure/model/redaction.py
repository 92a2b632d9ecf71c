"""Taking secrets out of texts that others wrote: driver errors, server messages, tracebacks.

A second line of defence. The first is that secrets travel as ``tenure.model.masked.Masked`` and never become
text.
"""

import re

from tenure.model.masked import MASK

_PATTERNS = (
    # scheme://user:password@host, also with an empty user
    (re.compile(r"\b([a-zA-Z][a-zA-Z0-9+.\-]*://[^\s:/@'\"]*):([^\s/'\"]*)@"), rf"\1:{MASK}@"),
    # password=..., passwd: ..., "api_key": "..." in connection strings, queries and dumps of settings
    (
        re.compile(
            r"(?i)\b(password|passwd|pwd|secret|token|api[_-]?key)(['\"]?\s*[=:]\s*['\"]?)([^\s'\"&,;)}\]]+)"
        ),
        rf"\1\2{MASK}",
    ),
    # Authorization headers
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/\-]{8,}=*"), rf"\1 {MASK}"),
    # PEM blocks
    (
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
        MASK,
    ),
)


def redact(text: str) -> str:
    """The text with passwords in URLs, key-value secrets, bearer tokens and private keys replaced by
    ``***``."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def one_line(text: str, limit: int) -> str:
    """The text redacted, as one line of printable characters, at most ``limit`` characters long."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in redact(text)).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
