"""All instances of one server."""

import time
from collections.abc import Callable

from tenure.control.instances.config import HostingConfig
from tenure.control.instances.hosted import Hosted
from tenure.protocol.messages import CreateRequest, InstanceWithEnvironment


class Instances:
    def __init__(
        self, config: HostingConfig, *, port: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config, self._port, self._clock = config, port, clock

    def admit(self, request: CreateRequest) -> Hosted:
        raise NotImplementedError

    async def launch(self, hosted: Hosted) -> None:
        raise NotImplementedError

    def enumerate(self) -> tuple[InstanceWithEnvironment, ...]:
        raise NotImplementedError

    def find(self, instance_id: str) -> Hosted | None:
        raise NotImplementedError

    async def stop(self, instance_id: str) -> bool:
        raise NotImplementedError

    async def stop_all(self) -> None:
        raise NotImplementedError

    async def close_streams(self, bound: float = 1.0) -> None:
        raise NotImplementedError

    async def run(self) -> None:
        raise NotImplementedError
