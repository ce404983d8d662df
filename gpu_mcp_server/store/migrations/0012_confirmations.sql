-- Attempts that are to be judged once more before their times count, and how that stands.
CREATE TABLE confirmations (
    attempt_id   TEXT PRIMARY KEY,
    why          TEXT NOT NULL,
    state        TEXT NOT NULL,
    said         TEXT NOT NULL DEFAULT '',
    requested_at TEXT NOT NULL,
    started_at   TEXT,
    ended_at     TEXT,
    server       TEXT,
    host         TEXT,
    seconds      REAL,
    tries        INTEGER NOT NULL DEFAULT 0,
    told         INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX confirmations_by_state ON confirmations (state, requested_at);
