"""The control-server record: exactly one for each installation, written by compare-and-set on ``adopted_by``.

There is no fencing epoch: a writer says whose record it believes it to be, and is told ``RecordMoved`` when it is
somebody else's. A writer of the same incarnation never takes the record back to an older rotation.
"""

from dataclasses import dataclass

from tenure.model.adoption import AdoptionReason
from tenure.model.records import SurvivalEffective
from tenure.storage.pool import Connection
from tenure.storage.records.errors import RecordMoved
from tenure.storage.records.reading import server_from
from tenure.storage.records.transactions import Rows
from tenure.storage.records.types import ControlServerRecord, ServerFacts

_COLUMNS = (
    "installation_id, name, endpoint, server_identity, pod_uid, credential_secret, capabilities, diagnostic_output, "
    "unowned_period_ms, rotation_id, rotation_confirmed, adopted_by, recovered_by, survival_effective, updated_at"
)

GET = f"SELECT {_COLUMNS} FROM tenure.control_servers WHERE namespace = $1 AND installation_id = $2"  # noqa: S608

INSTALLATION_OF = """
SELECT installation_id FROM tenure.control_servers WHERE namespace = $1 AND server_identity = $2
"""

ENSURE = """
INSERT INTO tenure.control_servers (namespace, installation_id, name) VALUES ($1, $2, $3)
ON CONFLICT (namespace, installation_id) DO NOTHING
"""

_RETURNING = f" RETURNING {_COLUMNS}"

# A fresh server begins here: nothing that is read later can lead back to the one that was refused. Its pod stays on
# record: that names the vacancy, by which the pod that is made in its place is recognised. It is compared, too: so a
# call that comes late (of an operator that lost its Lease) never abandons the server that was made in the meantime for
# the same incarnation. The second alternative is the same call again, which takes no finished recovery back.
VACATE = """
UPDATE tenure.control_servers
   SET endpoint = NULL, server_identity = NULL, credential_secret = NULL, capabilities = '{}',
       diagnostic_output = NULL, unowned_period_ms = NULL, rotation_id = NULL, rotation_confirmed = false,
       recovered_by = CASE WHEN adopted_by = $4 AND server_identity IS NULL THEN recovered_by ELSE $5 END,
       adopted_by = $4, survival_effective = coalesce($6, survival_effective), updated_at = now()
 WHERE namespace = $1 AND installation_id = $2 AND pod_uid IS NOT DISTINCT FROM $7
   AND (adopted_by IS NOT DISTINCT FROM $3 OR (adopted_by = $4 AND server_identity IS NULL))
"""

# The second alternative is the same call again, its answer lost. The last line: of two writers of one incarnation
# (an operator that lost its Lease, and the next one) the older rotation loses.
RECORD = """
UPDATE tenure.control_servers
   SET endpoint = $5, server_identity = $6, pod_uid = $7, credential_secret = $8, capabilities = $9,
       unowned_period_ms = $10, rotation_id = $11, diagnostic_output = $13,
       rotation_confirmed = $12 OR coalesce(rotation_confirmed AND server_identity = $6 AND rotation_id = $11, false),
       recovered_by = CASE WHEN $4 IN (adopted_by, recovered_by) THEN recovered_by END, adopted_by = $4,
       survival_effective = coalesce($14, survival_effective), updated_at = now()
 WHERE namespace = $1 AND installation_id = $2
   AND (adopted_by IS NOT DISTINCT FROM $3 OR (adopted_by = $4 AND server_identity = $6))
   AND NOT (server_identity IS NOT DISTINCT FROM $6 AND coalesce(rotation_id, 0) > coalesce($11, 0))
"""

SET_ADOPTED = """
UPDATE tenure.control_servers
   SET recovered_by = CASE WHEN adopted_by = $4 THEN recovered_by END, adopted_by = $4, updated_at = now()
 WHERE namespace = $1 AND installation_id = $2 AND (adopted_by IS NOT DISTINCT FROM $3 OR adopted_by = $4)
"""

# Of the newest rotation only: one that was superseded meanwhile is not confirmed by a late answer.
CONFIRM = """
UPDATE tenure.control_servers SET rotation_confirmed = true, updated_at = now()
 WHERE namespace = $1 AND installation_id = $2 AND adopted_by = $3 AND rotation_id = $4
RETURNING 1
"""

# From here on every launch of a live session is refused as retryable, in every process. A recovery of the same
# incarnation that is over stays so.
BEGIN_RECOVERY = """
UPDATE tenure.control_servers
   SET recovered_by = CASE WHEN recovered_by = $4 THEN recovered_by END, updated_at = now()
 WHERE namespace = $1 AND installation_id = $2 AND adopted_by IS NOT DISTINCT FROM $3
"""

# The deadline may have decided about every record while the adoption is still in flight: then the two differ.
SET_RECOVERED = """
UPDATE tenure.control_servers SET recovered_by = $3, updated_at = now()
 WHERE namespace = $1 AND installation_id = $2 AND adopted_by IS NOT DISTINCT FROM $4
"""

SET_SURVIVAL = """
UPDATE tenure.control_servers SET survival_effective = $3, updated_at = now()
 WHERE namespace = $1 AND installation_id = $2
"""


@dataclass(frozen=True, slots=True)
class Vacated:
    """A record that names no server any more. The reason is told, not stored."""

    record: ControlServerRecord
    reason: AdoptionReason | None


class ControlServers(Rows):
    """The control-server records of one namespace. ``adopted_by``, in every method: whose the caller believes the
    record to be (None: nobody's); ``RecordMoved`` when it is another's or there is none."""

    async def get(self, installation_id: str) -> ControlServerRecord | None:
        """The record, or None before ``ensure``."""

        async def body(connection: Connection) -> ControlServerRecord | None:
            row = await connection.fetchrow(GET, self._namespace, installation_id)
            return None if row is None else server_from(row)

        return await self._transact(body)

    async def installation_of(self, server_identity: str) -> str | None:
        """The installation whose server this is now; None when no record names it. An identity lives once."""
        found = await self._statement(INSTALLATION_OF, server_identity)
        return None if found is None else str(found)

    async def ensure(self, installation_id: str, name: str) -> ControlServerRecord:
        """The record, made vacant if there is none. ``name`` is the ControlServer's, for people."""

        async def body(connection: Connection) -> ControlServerRecord:
            await connection.execute(ENSURE, self._namespace, installation_id, name)
            return server_from(await connection.fetchrow(GET, self._namespace, installation_id))

        return await self._transact(body)

    async def vacate(
        self,
        installation_id: str,
        *,
        adopted_by: str | None,
        incarnation: str,
        pod_uid: str | None,
        reason: AdoptionReason | None = None,
        recovered_by: str | None = None,
        survival: SurvivalEffective | None = None,
        name: str = "",
    ) -> Vacated:
        """Forget the server that it names but for its pod, and make the record ``incarnation``'s. May be repeated.

        ``pod_uid``: the pod that the caller found on record; ``RecordMoved`` when there is another by now.
        ``recovered_by``: None, or ``incarnation`` when its recovery is over already. ``survival`` None: as it was.
        With ``adopted_by`` None a record that is not there is inserted; ``name`` is the ControlServer's then.
        """
        values = (adopted_by, incarnation, recovered_by, survival, pod_uid)

        async def body(connection: Connection) -> ControlServerRecord:
            if adopted_by is None:
                await connection.execute(ENSURE, self._namespace, installation_id, name)
            return await self._written(connection, VACATE, installation_id, *values)

        return Vacated(await self._transact(body), reason)

    async def record(
        self,
        installation_id: str,
        server: ServerFacts,
        *,
        adopted_by: str | None,
        incarnation: str,
        survival: SurvivalEffective | None = None,
    ) -> ControlServerRecord:
        """Name this server, and make the record ``incarnation``'s. May be repeated. Comes after the Secret is
        stored, and before the rotation is confirmed. ``survival`` None: as it was."""
        return await self._set(
            RECORD,
            installation_id,
            adopted_by,
            incarnation,
            server.endpoint,
            server.server_identity,
            server.pod_uid,
            server.credential_secret,
            list(server.capabilities),
            server.unowned_period_ms,
            server.rotation_id,
            server.rotation_confirmed,
            server.diagnostic_output,
            survival,
        )

    async def set_adopted(
        self, installation_id: str, *, adopted_by: str | None, incarnation: str
    ) -> ControlServerRecord:
        """Make the record ``incarnation``'s, naming the same server as before. May be repeated."""
        return await self._set(SET_ADOPTED, installation_id, adopted_by, incarnation)

    async def confirm_rotation(self, installation_id: str, incarnation: str, rotation_id: int) -> bool:
        """The server has confirmed this rotation. False: it is not the newest, or the record is another's."""

        async def body(connection: Connection) -> bool:
            values = (installation_id, incarnation, rotation_id)
            return await connection.fetchval(CONFIRM, self._namespace, *values) is not None

        return await self._transact(body)

    async def begin_recovery(
        self, installation_id: str, *, adopted_by: str | None, incarnation: str | None = None
    ) -> ControlServerRecord:
        """Recovery decides about every live session from now on, until ``set_recovered``. ``incarnation``: whose it
        is; when that one's is over already, nothing changes. May be repeated."""
        return await self._set(BEGIN_RECOVERY, installation_id, adopted_by, incarnation)

    async def set_recovered(
        self, installation_id: str, incarnation: str, *, adopted_by: str | None
    ) -> ControlServerRecord:
        """Every record has its outcome, and reconciliation ran. ``adopted_by`` is another than ``incarnation`` when
        the deadline has ended a recovery whose adoption is in flight. May be repeated."""
        return await self._set(SET_RECOVERED, installation_id, incarnation, adopted_by)

    async def set_survival(self, installation_id: str, survival: SurvivalEffective) -> ControlServerRecord:
        """Whether agents outlive their backend here."""
        return await self._set(SET_SURVIVAL, installation_id, survival)

    async def _set(self, statement: str, installation_id: str, *values: object) -> ControlServerRecord:
        return await self._transact(
            lambda connection: self._written(connection, statement, installation_id, *values)
        )

    async def _written(
        self, connection: Connection, statement: str, installation_id: str, *values: object
    ) -> ControlServerRecord:
        row = await connection.fetchrow(statement + _RETURNING, self._namespace, installation_id, *values)
        if row is None:
            raise RecordMoved("the control-server record is another incarnation's by now")
        return server_from(row)
