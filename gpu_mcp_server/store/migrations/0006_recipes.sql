-- Which step of which headless run an attempt came from, with the prompt; and notes that agents leave each other.
CREATE TABLE recipe_attempts (
    attempt_id         TEXT PRIMARY KEY,
    run_id             TEXT NOT NULL,
    step               TEXT NOT NULL,
    prompt_artifact_id TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX attempts_by_batch ON attempts (batch_id);
CREATE INDEX jobs_by_attempt ON jobs (attempt_id);

CREATE TABLE notes (
    seq        INTEGER PRIMARY KEY,
    note_id    TEXT NOT NULL UNIQUE,
    created_at TEXT NOT NULL,
    attempt_id TEXT,
    problem_id TEXT,
    text       TEXT NOT NULL
);
