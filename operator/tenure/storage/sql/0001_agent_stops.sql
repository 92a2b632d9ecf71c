-- The ledger of stops of standalone agents: one row per instance, final once finished_at is set.
-- The namespace comes first in every key, so that no tenant can name another's row.
CREATE TABLE tenure.agent_stops (
    namespace          TEXT        NOT NULL CHECK (namespace <> ''),
    pod_uid            TEXT        NOT NULL CHECK (pod_uid <> ''),
    name               TEXT        NOT NULL,
    instance_id        TEXT        NOT NULL,
    origin             TEXT        NOT NULL
                       CHECK (origin IN ('Resource', 'Table', 'Deletion', 'Replacement', 'Disruption')),
    requested_at       TIMESTAMPTZ NOT NULL,
    finished_at        TIMESTAMPTZ,
    graceful           BOOLEAN,
    exit_code          INTEGER,
    grace_seconds      INTEGER     CHECK (grace_seconds >= 0),
    task_id_at_request BIGINT,
    PRIMARY KEY (namespace, pod_uid)
);

CREATE INDEX agent_stops_by_name ON tenure.agent_stops (namespace, name, requested_at);

COMMENT ON TABLE tenure.agent_stops IS 'Stops of standalone agents, written by the Tenure operator';
COMMENT ON COLUMN tenure.agent_stops.graceful IS 'NULL: nobody knows whether the agent ended gracefully';
