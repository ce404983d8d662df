-- Calls that may come twice, as their line was lost: by whom and which, the job that does the work, and the answer.
CREATE TABLE keyed_calls (
    call_key   TEXT PRIMARY KEY,
    content    TEXT NOT NULL,
    created_at TEXT NOT NULL,
    job_id     TEXT,
    outcome    TEXT
) WITHOUT ROWID;
CREATE INDEX keyed_calls_by_age ON keyed_calls (created_at);
