"""Reading one named Secret: what a backend does with its hand-over, as its own ServiceAccount."""

import base64
import binascii
from collections.abc import Mapping
from typing import Self

from tenure.cluster.calls import BACKEND_CALLS, SECRETS, Verb
from tenure.cluster.client import KubernetesClient
from tenure.cluster.errors import NotFound, Unavailable
from tenure.model.masked import Masked


class SecretReader:
    """Reads Secrets by name. Needs ``get`` and neither ``list`` nor ``watch``."""

    def __init__(self, client: KubernetesClient) -> None:
        self._client = client

    @classmethod
    async def connect(cls, environ: Mapping[str, str] | None = None) -> Self:
        """For the cluster of the environment; contacts nothing yet. Raises ``NoCluster``."""
        return cls(await KubernetesClient.connect(environ, calls=BACKEND_CALLS))

    async def read(self, namespace: str, name: str) -> dict[str, Masked] | None:
        """The decoded texts by key; None when there is no such Secret. Raises ``ApiError``, without content."""
        try:
            secret = await self._client.request(Verb.GET, SECRETS, namespace=namespace, name=name)
        except NotFound:
            return None
        try:
            data = secret.get("data") or {}
            return {str(key): _decoded(value) for key, value in data.items()}
        except (AttributeError, TypeError, binascii.Error, UnicodeError):
            pass
        # Outside of the handler: those exceptions may hold what was read.
        raise Unavailable(200, "UnreadableAnswer", "a value of the Secret is no text")

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.close()


def _decoded(value: str) -> Masked:
    return Masked(base64.b64decode(value, validate=True).decode())
