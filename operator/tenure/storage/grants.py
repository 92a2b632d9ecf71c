"""SQL that gives each role what it needs and no more.

Four roles. *operator*: reads rows, asks for stops, writes the ledger. *agent*: its own heartbeats, never a
stop. *backend*: reads the ledger of its own namespaces. *stopper*: a person or a tool that asks for stops,
nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tenure.storage.liveness import TABLE

_HEARTBEAT_COLUMNS = (
    "instance_id, process_kind, hostname, pid, liveness_interval_s, started_at, last_heartbeat_at, "
    "current_task_id, current_task_type"
)


@dataclass(frozen=True, slots=True)
class Roles:
    """Names of PostgreSQL roles; ``backend_namespaces`` are the Kubernetes namespaces whose rows the
    backend reads."""

    operator: str = "tenure_operator"
    agent: str = "tenure_agent"
    backend: str = "tenure_backend"
    stopper: str = "tenure_stopper"
    backend_namespaces: tuple[str, ...] = ()


def grants_sql(roles: Roles, *, liveness: bool = True, store: bool = True) -> str:
    """Statements for ``psql``, to be run by the owner of the tables once the roles exist. Safe to repeat.

    ``liveness``: for the database with the liveness table; ``store``: for the one with the schema ``tenure``.
    """
    parts = ["-- Grants for Tenure. Run as the owner of the tables, once the roles exist.", "BEGIN;"]
    if liveness:
        parts += _liveness(roles)
    if store:
        parts += _store(roles)
    return "\n".join([*parts, "COMMIT;", ""])


def _liveness(roles: Roles) -> list[str]:
    operator, agent, stopper = map(quoted, (roles.operator, roles.agent, roles.stopper))
    return [
        "",
        "-- The operator reads rows and asks for stops. It never writes a heartbeat.",
        f"GRANT SELECT, UPDATE (desired_state) ON {TABLE} TO {operator};",
        "-- An agent writes its heartbeat and reads its row. It can neither ask for a stop nor undo one.",
        f"GRANT SELECT, INSERT ({_HEARTBEAT_COLUMNS}),",
        f"      UPDATE (last_heartbeat_at, current_task_id, current_task_type) ON {TABLE} TO {agent};",
        "-- Whoever stops agents through the table: sees them, and sets the one column.",
        f"GRANT SELECT, UPDATE (desired_state) ON {TABLE} TO {stopper};",
    ]


def _store(roles: Roles) -> list[str]:
    operator, backend = quoted(roles.operator), quoted(roles.backend)
    namespaces = ", ".join(literal(namespace) for namespace in roles.backend_namespaces)
    condition = f"namespace IN ({namespaces})" if namespaces else "false"
    policy = quoted(f"{roles.backend}_own_namespaces")
    return [
        "",
        "-- The ledger of stops: the operator writes it, finished rows stay.",
        f"GRANT USAGE ON SCHEMA tenure TO {operator}, {backend};",
        f"GRANT SELECT ON tenure.migrations TO {operator};",
        f"GRANT SELECT, INSERT, UPDATE ON tenure.agent_stops TO {operator};",
        "-- A backend sees the rows of its own namespaces"
        + (":" if namespaces else "; none was named, so it sees nothing:"),
        f"GRANT SELECT ON tenure.agent_stops TO {backend};",
        "ALTER TABLE tenure.agent_stops ENABLE ROW LEVEL SECURITY;",
        *_policy(quoted("tenure_operator_all"), f"FOR ALL TO {operator} USING (true) WITH CHECK (true)"),
        *_policy(policy, f"FOR SELECT TO {backend} USING ({condition})"),
    ]


def _policy(name: str, rule: str) -> Sequence[str]:
    return (
        f"DROP POLICY IF EXISTS {name} ON tenure.agent_stops;",
        f"CREATE POLICY {name} ON tenure.agent_stops {rule};",
    )


def quoted(identifier: str) -> str:
    """A PostgreSQL identifier. Raises ``ValueError`` for one that PostgreSQL would cut or refuse."""
    if not identifier or "\0" in identifier or len(identifier.encode()) > 63:
        raise ValueError("a role name has 1 to 63 bytes")
    return '"' + identifier.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string literal that means the same whatever ``standard_conforming_strings`` says."""
    if "\\" in text or "\0" in text:
        raise ValueError("a namespace has lower-case letters, digits and dashes only")
    return "'" + text.replace("'", "''") + "'"
