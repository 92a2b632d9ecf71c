-- A small queue, and a journal that proves what happened to each task.

CREATE TABLE IF NOT EXISTS worker_queue (
    id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    type          TEXT             NOT NULL DEFAULT 'sum',
    seconds       DOUBLE PRECISION NOT NULL,
    state         TEXT             NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'claimed', 'done')),
    claimed_by    TEXT,
    -- Goes up with every claim; only the holder of the current claim may renew or finish it.
    claim         INTEGER          NOT NULL DEFAULT 0,
    lease_until   TIMESTAMPTZ,
    result        TEXT
);

CREATE INDEX IF NOT EXISTS worker_queue_open ON worker_queue (id) WHERE state <> 'done';

-- One line per start and per end of the work on a task. Nothing is ever changed or removed, so it is evidence:
-- a start without an end was cut off, two ends of one task are work done twice.
CREATE TABLE IF NOT EXISTS worker_journal (
    id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task_id       BIGINT           NOT NULL REFERENCES worker_queue (id),
    claim         INTEGER          NOT NULL,
    instance_id   TEXT             NOT NULL,
    event         TEXT             NOT NULL CHECK (event IN ('started', 'finished', 'lost')),
    at            TIMESTAMPTZ      NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (task_id, claim, event)
);
