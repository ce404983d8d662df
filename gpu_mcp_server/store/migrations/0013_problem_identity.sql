-- A problem's name, description and implementations are not its content: by which rule an id was made, which ids it had
-- before, and its implementations, each its owner's.
ALTER TABLE problems ADD COLUMN rule INTEGER NOT NULL DEFAULT 1;
CREATE TABLE problem_aliases (
    alias      TEXT PRIMARY KEY,
    problem_id TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE implementations (
    seq        INTEGER PRIMARY KEY,
    handle     TEXT NOT NULL UNIQUE,
    problem_id TEXT NOT NULL,
    name       TEXT NOT NULL,
    json       TEXT NOT NULL
);
CREATE INDEX implementations_by_problem ON implementations (problem_id);
