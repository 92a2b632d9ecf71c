"""Every statement about the liveness table in PostgreSQL, named and explained.

The table belongs to whoever made it: its time columns may be TIMESTAMPTZ, TIMESTAMP or TEXT, and
``desired_state`` may not be there yet. So reads take the row as JSON, which spells every time in ISO 8601
whatever the session's settings, and cannot fail on a value that the driver does not know (``infinity``,
NaN, years before Christ); writes are made for the column types found.
"""

from tenure.storage.errors import StorageError

NOTIFY_CHANNEL = "tenure_agent_stop"
"""Channel of the trigger. The payload is the instance id, or empty when that is too long to be sent."""

LIVENESS_LOCK = 0x74656E7572650001
"""Advisory lock under which the liveness table is migrated ("tenure" in ASCII, then a number)."""

SCHEMA_LOCK = 0x74656E7572650002
"""Advisory lock under which the schema ``tenure`` is migrated."""

# What is there: columns and their types, the index, the trigger, and whether this role may change it. One
# round trip.
SHAPE = """
SELECT c.oid::regclass::text AS relation,
       (SELECT json_object_agg(a.attname, format_type(a.atttypid, NULL))
          FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)::text AS
          columns,
       EXISTS (SELECT FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
                WHERE i.indrelid = c.oid AND x.relname = 'idx_agent_liveness_kind') AS indexed,
       EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname = 'tenure_stop_notify') AS
       notifies, pg_has_role(c.relowner, 'USAGE') AS owned, has_schema_privilege(c.relnamespace, 'CREATE')
       AS may_create, quote_ident(n.nspname) AS schema
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = to_regclass('cks_agent_liveness')
"""

CREATE_TABLE = """
CREATE TABLE IF NOT EXISTS cks_agent_liveness (
    instance_id         TEXT PRIMARY KEY,
    process_kind        TEXT NOT NULL,
    hostname            TEXT NOT NULL,
    pid                 INTEGER NOT NULL,
    liveness_interval_s DOUBLE PRECISION NOT NULL,
    started_at          TIMESTAMPTZ NOT NULL,
    last_heartbeat_at   TIMESTAMPTZ NOT NULL,
    current_task_id     INTEGER,
    current_task_type   TEXT,
    desired_state       TEXT
)
"""

# Nullable, no default: old rows read as "no stop requested" without being rewritten, and the lock is held
# an instant.
ADD_DESIRED_STATE = "ALTER TABLE cks_agent_liveness ADD COLUMN IF NOT EXISTS desired_state TEXT"

CREATE_KIND_INDEX = """
CREATE INDEX IF NOT EXISTS idx_agent_liveness_kind ON cks_agent_liveness (process_kind, last_heartbeat_at)
"""

# Runs inside the transaction of whoever asks for the stop, so nothing in it may fail: an instance id above
# NOTIFY's limit of 8000 bytes is announced as an empty payload ("read everything"), and any other trouble
# is left to the polling.
CREATE_NOTIFY_FUNCTION = """
CREATE OR REPLACE FUNCTION {schema}.tenure_stop_notify() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $tenure$
BEGIN
    PERFORM pg_notify('tenure_agent_stop',
                      CASE WHEN octet_length(NEW.instance_id) <= 1000 THEN NEW.instance_id ELSE '' END);
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END
$tenure$
"""

# Heartbeats name neither the column nor a value for it, so they never notify.
CREATE_NOTIFY_TRIGGER = """
CREATE TRIGGER tenure_stop_notify AFTER INSERT OR UPDATE OF desired_state ON cks_agent_liveness
FOR EACH ROW WHEN (NEW.desired_state IS NOT NULL) EXECUTE FUNCTION {schema}.tenure_stop_notify()
"""

_UPSERT = """
INSERT INTO cks_agent_liveness
    (instance_id, process_kind, hostname, pid, liveness_interval_s, started_at, last_heartbeat_at,
     current_task_id, current_task_type)
VALUES ($1, $2, $3, $4, $5, {started_at}, {last_heartbeat_at}, $8, $9)
ON CONFLICT (instance_id) DO UPDATE SET
    last_heartbeat_at = EXCLUDED.last_heartbeat_at,
    current_task_id   = EXCLUDED.current_task_id,
    current_task_type = EXCLUDED.current_task_type
"""

# A time parameter is ISO 8601 text; NULL means the database's own clock, at this moment.
_NOW_ISO = """to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"')"""
_TIME_BY_TYPE = {
    "timestamp with time zone": "coalesce({p}::text::timestamptz, clock_timestamp())",
    "timestamp without time zone": "coalesce({p}::text::timestamptz, clock_timestamp()) AT TIME ZONE 'UTC'",
    "text": "coalesce({p}::text, " + _NOW_ISO + ")",
}
_TIME_BY_TYPE["character varying"] = _TIME_BY_TYPE["text"]

# One primary key lookup.
GET = "SELECT row_to_json(l)::text FROM cks_agent_liveness l WHERE l.instance_id = $1"

LIST = "SELECT row_to_json(l)::text FROM cks_agent_liveness l"

# A single column of a single row: no row is made, and the heartbeat stays what the process itself said.
REQUEST_STOP = (
    "UPDATE cks_agent_liveness SET desired_state = 'stop_requested' WHERE instance_id = $1 RETURNING 1"
)

# All agents of a database in one answer: their rows by primary key; those without a known row by kind, host
# name and a recent heartbeat, which is a range of the table's own index however much history it holds. The
# literal takes the type of the column, be that a time or a text. Together with the database's clock, so
# that a reader compares like with like.
# A subquery for each id, not "= ANY": so the planner has no choice but the primary key, at any ratio of ids to history.
_KNOWN = """
       (SELECT coalesce(json_agg(found.row) FILTER (WHERE found.row IS NOT NULL), '[]'::json)::text
          FROM (SELECT (SELECT row_to_json(l) FROM cks_agent_liveness l WHERE l.instance_id = w.id) AS row
                  FROM unnest($1::text[]) AS w (id) OFFSET 0) AS found) AS known"""

SNAPSHOT = (  # {since} is a date that we format ourselves
    "SELECT clock_timestamp() AS now,"  # noqa: S608
    + _KNOWN
    + """,
       (SELECT coalesce(json_agg(row_to_json(l)), '[]'::json)::text
          FROM cks_agent_liveness l
         WHERE l.process_kind = ANY ($2::text[]) AND l.last_heartbeat_at >= '{since}'
           AND l.hostname = ANY ($3::text[])) AS unknown
"""
)

SNAPSHOT_BY_KEY = "SELECT clock_timestamp() AS now," + _KNOWN

# The last word on one pod that has ended: its row's heartbeat may be the epoch, so there is no bound to
# search within.
LOOKUP = """
SELECT clock_timestamp() AS now,
       (SELECT coalesce(json_agg(row_to_json(l)), '[]'::json)::text
          FROM cks_agent_liveness l WHERE l.process_kind = $1 AND l.hostname = $2) AS unknown
"""

PROBE = "SELECT pg_is_in_recovery()"


def upsert(started_at: str, last_heartbeat_at: str) -> str:
    """The upsert for a table whose time columns have these types, as ``format_type`` spells them.

    Raises ``StorageError`` for a type in which no writer of this table keeps a time.
    """
    return _UPSERT.format(
        started_at=_time(started_at, "$6"),
        last_heartbeat_at=_time(last_heartbeat_at, "$7"),
    )


def _time(column_type: str, parameter: str) -> str:
    try:
        return _TIME_BY_TYPE[column_type].format(p=parameter)
    except KeyError:
        allowed = ", ".join(sorted(_TIME_BY_TYPE))
        raise StorageError(
            f"cks_agent_liveness keeps a time in an unusable type; usable: {allowed}"
        ) from None
