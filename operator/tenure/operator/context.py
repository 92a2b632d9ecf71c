"""What the parts of a leading operator share."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tenure.cluster.client import KubernetesClient
from tenure.cluster.ports import AgentCluster
from tenure.cluster.server_ports import ServerCluster
from tenure.model.settings import DatabaseConfig, OperatorSettings
from tenure.operator.clock import Clock
from tenure.operator.events import EventRecorder
from tenure.operator.health import WatchAges
from tenure.operator.servers.keeper import Keeper
from tenure.operator.servers.sight import OwnProcess
from tenure.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorContext:
    """Made once by ``operator.main``, given to ``operator.scope.run_scope`` each time the Lease is won."""

    settings: OperatorSettings
    metrics: Metrics
    cluster: AgentCluster
    """The agents' objects; tests wrap it. Its writes are refused once the Lease is lost."""
    servers: ServerCluster
    """The same for control servers' objects."""
    keeper: Keeper
    """Renews claims; it lives as long as the process, whoever holds the Lease."""
    own: OwnProcess
    """This process, where it is the backend itself."""
    client: KubernetesClient
    """For lists and for kopf's login; passes use ``cluster``."""
    databases: tuple[DatabaseConfig, ...]
    events: EventRecorder
    watches: WatchAges
    """Whoever runs the watches says ``watches.seen(resource)`` for each event or bookmark."""
    clock: Clock = field(default_factory=Clock)
    on_synced: Callable[[], None] = lambda: None
    """Called when everything that exists has been seen once, just before the first pass."""
    leading: Callable[[], bool] = lambda: True
    """Whether the Lease is held at this moment; ask it before a write that the cluster adapter does not
    make."""
