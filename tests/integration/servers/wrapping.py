"""What stands between an operator and its cluster, for ``World.operator(wrap_servers=...)``."""

from dataclasses import dataclass
from typing import Any, Self

from tenure.cluster.server_ports import ServerCluster


@dataclass(kw_only=True)
class Wrapping:
    """A ``ServerCluster`` that hands everything on, but for what is otherwise in whoever inherits from it."""

    inner: Any = None

    def __call__(self, inner: ServerCluster) -> Self:
        self.inner = inner
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
