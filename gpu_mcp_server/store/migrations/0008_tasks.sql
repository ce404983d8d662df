-- Calls of tools that were answered before their end, by the job that does the work; and what servers tell each other.
CREATE TABLE tasks (
    task_id    TEXT PRIMARY KEY,
    tool       TEXT NOT NULL,
    owner      TEXT NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    status     TEXT NOT NULL,
    outcome    TEXT
) WITHOUT ROWID;

CREATE TABLE events (
    seq  INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    uri  TEXT
);
