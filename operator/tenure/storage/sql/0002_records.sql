-- The records of sessions: what a backend that comes back finds, and what guards a session against a second agent.
-- The namespace comes first in every key, so that no tenant can name another's row. All times are the database's.
-- No credential, no environment value and nothing of a workspace is in any row.

-- Exactly one row for each installation, there with no session at all. Vacant (server_identity NULL) means: make or
-- finish a fresh server.
CREATE TABLE tenure.control_servers (
    namespace          TEXT        NOT NULL CHECK (namespace <> ''),
    installation_id    TEXT        NOT NULL CHECK (installation_id <> ''),
    name               TEXT        NOT NULL,
    endpoint           TEXT,
    server_identity    TEXT        CHECK (server_identity <> ''),
    pod_uid            TEXT,
    credential_secret  TEXT,
    capabilities       TEXT[]      NOT NULL DEFAULT '{}',
    diagnostic_output  TEXT,
    unowned_period_ms  BIGINT      CHECK (unowned_period_ms > 0),
    rotation_id        BIGINT      CHECK (rotation_id > 0),
    rotation_confirmed BOOLEAN     NOT NULL DEFAULT false,
    adopted_by         TEXT        CHECK (adopted_by <> ''),
    recovered_by       TEXT        CHECK (recovered_by <> ''),
    survival_effective TEXT        NOT NULL DEFAULT 'Disabled'
                       CHECK (survival_effective IN ('Enabled', 'Disabled', 'Unavailable')),
    updated_at         TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, installation_id)
);

CREATE TABLE tenure.tasks (
    namespace      TEXT        NOT NULL CHECK (namespace <> ''),
    id             TEXT        NOT NULL CHECK (id <> ''),
    state          TEXT        NOT NULL DEFAULT 'todo' CHECK (state IN ('todo', 'in_progress', 'review', 'done')),
    interrupted_at TIMESTAMPTZ,
    created_at     TIMESTAMPTZ NOT NULL DEFAULT now(),
    updated_at     TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, id)
);

CREATE TABLE tenure.sessions (
    namespace           TEXT        NOT NULL CHECK (namespace <> ''),
    id                  TEXT        NOT NULL CHECK (id <> ''),
    task_id             TEXT        NOT NULL,
    installation_id     TEXT        NOT NULL CHECK (installation_id <> ''),
    task_environment_id TEXT        NOT NULL DEFAULT '',
    state               TEXT        NOT NULL DEFAULT 'created'
                        CHECK (state IN ('created', 'running', 'waiting_for_input', 'completed', 'failed', 'cancelled')),
    passthrough         BOOLEAN     NOT NULL DEFAULT false,
    interrupted_at      TIMESTAMPTZ,
    created_at          TIMESTAMPTZ NOT NULL DEFAULT now(),
    updated_at          TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, id),
    FOREIGN KEY (namespace, task_id) REFERENCES tenure.tasks (namespace, id)
);

CREATE INDEX sessions_by_task ON tenure.sessions (namespace, task_id);

-- The recovery inventory. A live row (running, stopping) is the guard of its session. Repaired in place, never deleted.
CREATE TABLE tenure.executors_running (
    namespace          TEXT        NOT NULL CHECK (namespace <> ''),
    id                 UUID        NOT NULL DEFAULT gen_random_uuid(),
    session_id         TEXT        NOT NULL,
    task_id            TEXT        NOT NULL,
    installation_id    TEXT        NOT NULL CHECK (installation_id <> ''),
    runtime            TEXT        NOT NULL DEFAULT 'standalone' CHECK (runtime IN ('standalone')),
    agent_process_uid  TEXT,
    grace_seconds      INTEGER     CHECK (grace_seconds >= 0),
    status             TEXT        NOT NULL CHECK (status IN ('running', 'stopping', 'stopped', 'failed')),
    agent_execution_id TEXT        NOT NULL CHECK (agent_execution_id <> ''),
    agent_profile      TEXT        NOT NULL DEFAULT '',
    container_identity TEXT        NOT NULL DEFAULT '',
    workspace_path     TEXT        NOT NULL DEFAULT '',
    worktree_id        TEXT,
    resume_token       TEXT,
    metadata           JSONB       NOT NULL DEFAULT '{}'
                       CHECK (jsonb_typeof(metadata) = 'object' AND octet_length(metadata::text) <= 65536),
    -- The incarnation for which the agent could not be stopped. The backend's role may not write it.
    unstopped_by       TEXT        CHECK (unstopped_by <> ''),
    created_by         TEXT        NOT NULL CHECK (created_by <> ''),
    last_seen_at       TIMESTAMPTZ NOT NULL DEFAULT now(),
    created_at         TIMESTAMPTZ NOT NULL DEFAULT now(),
    updated_at         TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, id),
    UNIQUE (namespace, session_id),
    FOREIGN KEY (namespace, session_id) REFERENCES tenure.sessions (namespace, id),
    CONSTRAINT executors_running_unstopped_is_live
        CHECK (unstopped_by IS NULL OR status IN ('running', 'stopping'))
);

CREATE INDEX executors_live ON tenure.executors_running (namespace, installation_id)
    WHERE status IN ('running', 'stopping');

-- The id is the turn key under which the prompt is sent; the server's own number comes with its answer.
CREATE TABLE tenure.turns (
    namespace       TEXT        NOT NULL CHECK (namespace <> ''),
    id              BIGSERIAL   NOT NULL,
    session_id      TEXT        NOT NULL,
    server_identity TEXT        CHECK (server_identity <> ''),
    control_turn_id BIGINT      CHECK (control_turn_id > 0),
    state           TEXT        NOT NULL DEFAULT 'open'
                    CHECK (state IN ('open', 'completed', 'failed', 'cancelled', 'abandoned')),
    -- Words of the outcome only. What an agent says about its work never gets here.
    outcome         JSONB       CHECK (jsonb_typeof(outcome) = 'object'
                                       AND outcome - '{type,stop_reason,code}'::text[] = '{}'::jsonb
                                       AND octet_length(outcome::text) <= 1024),
    created_at      TIMESTAMPTZ NOT NULL DEFAULT now(),
    updated_at      TIMESTAMPTZ NOT NULL DEFAULT now(),
    finished_at     TIMESTAMPTZ,
    PRIMARY KEY (namespace, id),
    UNIQUE (namespace, server_identity, control_turn_id),
    FOREIGN KEY (namespace, session_id) REFERENCES tenure.sessions (namespace, id),
    CONSTRAINT turns_numbered_by_a_server CHECK (control_turn_id IS NULL OR server_identity IS NOT NULL),
    CONSTRAINT turns_finished_when_terminal CHECK ((state = 'open') = (finished_at IS NULL)),
    CONSTRAINT turns_outcome_when_terminal CHECK (state <> 'open' OR outcome IS NULL)
);

CREATE INDEX turns_by_session ON tenure.turns (namespace, session_id, id);
CREATE UNIQUE INDEX turns_one_open ON tenure.turns (namespace, session_id) WHERE state = 'open';

COMMENT ON TABLE tenure.control_servers IS 'One row for each installation: which control server it has, and whose it is';
COMMENT ON TABLE tenure.executors_running IS 'Recovery inventory: which executions were live';
COMMENT ON TABLE tenure.sessions IS 'Sessions of agents, as people are told of them';
COMMENT ON TABLE tenure.turns IS 'Prompts and how they ended; the id is the turn key';
COMMENT ON TABLE tenure.tasks IS 'What sessions work on';
