"""Bodies as they are on the wire, to begin from."""

import json
from typing import Any

CREDENTIAL = "c0" * 32
KEY = "sk-live-6b1f3a"

INSTANCE: dict[str, Any] = {
    "id": "5d0c",
    "port": 8090,
    "status": "running",
    "workspace_path": "/work/a",
    "agent_command": "python -m agent",
    "env": {"PROVIDER_KEY": KEY, "EMPTY": ""},
    "created_at": "2026-05-01T10:00:00.123456789Z",
    "session_id": "s-1",
    "task_id": "t-1",
    "workspace_source_roots": ["/src/one"],
    "provider_session_id": "p-1",
}


def wire(body: Any) -> bytes:
    """The body as a peer would send it."""
    return json.dumps(body).encode()


def instance(**changes: Any) -> dict[str, Any]:
    """An enumerated instance with some fields changed; None takes a field away."""
    merged = {**INSTANCE, **changes}
    return {key: value for key, value in merged.items() if value is not None}
