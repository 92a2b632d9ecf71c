"""What ``kubectl get`` shows of each kind: a table that fits 100 characters, and more with ``--output=wide``."""

from typing import Any

Column = dict[str, Any]


def _column(name: str, kind: str, path: str, description: str, *, wide: bool = False) -> Column:
    column: Column = {"name": name, "type": kind, "jsonPath": path, "description": description}
    return column | ({"priority": 1} if wide else {})


def _condition(kind: str, field: str = "status") -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


_AGE = _column("Age", "date", ".metadata.creationTimestamp", "time since the resource was made")

# With a name of 30, the longest phase and the longest origin that there are.
AGENT_PROCESS: tuple[Column, ...] = (
    _column("Phase", "string", ".status.phase", "a summary of what the agent does"),
    _column("Ready", "string", _condition("Ready"), "running, or stopped as asked"),
    _column("Task", "integer", ".status.currentTask.id", "the task that the agent holds"),
    _column("Stop", "string", ".status.stop.origin", "who asked the latest instance to stop"),
    _column("Restarts", "integer", ".status.restarts", "new instances after ends that nobody asked for"),
    _AGE,
    _column("Desired", "string", ".spec.desiredState", "what is wanted of the agent", wide=True),
    _column("Alive", "string", _condition("Alive"), "whether the agent's heartbeat is fresh", wide=True),
    _column("Reason", "string", _condition("Ready", "reason"), "why it is Ready, or is not", wide=True),
    _column("Pod", "string", ".status.instance.podName", "the pod of the latest instance", wide=True),
)

# Names of pods are for the wide table: two of them beside each other would not fit.
CONTROL_SERVER: tuple[Column, ...] = (
    _column("Phase", "string", ".status.phase", "a summary of what the server does"),
    _column("Ready", "string", _condition("Ready"), "owned by its backend, and recovered"),
    _column("Survival", "string", ".status.survival.effective", "whether agents outlive their backend"),
    _column("Adopted", "string", _condition("Adopted"), "whether the server outlived an earlier backend"),
    _column("Retracked", "integer", ".status.recovery.retracked", "sessions that outlived it, too"),
    _AGE,
    _column("Recovered", "string", _condition("Recovered"), "whether recovery has finished", wide=True),
    _column("Reason", "string", _condition("Ready", "reason"), "why it is Ready, or is not", wide=True),
    _column("Server", "string", ".status.pod.name", "the pod of the server", wide=True),
    _column("Backend", "string", ".status.backend.podName", "the pod of the backend", wide=True),
)
