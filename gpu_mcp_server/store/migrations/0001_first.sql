CREATE TABLE artifacts (
    artifact_id TEXT PRIMARY KEY,
    sha256      TEXT NOT NULL UNIQUE,
    name        TEXT NOT NULL,
    media_type  TEXT,
    size_bytes  INTEGER NOT NULL,
    created_at  TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE workspaces (
    workspace_id TEXT PRIMARY KEY,
    created_at   TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE workspace_files (
    workspace_id TEXT NOT NULL REFERENCES workspaces (workspace_id) ON DELETE CASCADE,
    path         TEXT NOT NULL,
    sha256       TEXT NOT NULL,
    size_bytes   INTEGER NOT NULL,
    mode         INTEGER NOT NULL,
    PRIMARY KEY (workspace_id, path)
) WITHOUT ROWID;

CREATE TABLE jobs (
    seq          INTEGER PRIMARY KEY,
    job_id       TEXT NOT NULL UNIQUE,
    host         TEXT NOT NULL,
    purpose      TEXT NOT NULL,
    workspace_id TEXT,
    attempt_id   TEXT,
    submitted_at TEXT NOT NULL,
    context      TEXT NOT NULL,
    record       TEXT
);

CREATE TABLE problems (
    seq          INTEGER PRIMARY KEY,
    problem_id   TEXT NOT NULL UNIQUE,
    content_hash TEXT NOT NULL UNIQUE,
    created_at   TEXT NOT NULL,
    json         TEXT NOT NULL
);

CREATE TABLE attempts (
    seq                INTEGER PRIMARY KEY,
    attempt_id         TEXT NOT NULL UNIQUE,
    kind               TEXT NOT NULL,
    created_at         TEXT NOT NULL,
    status             TEXT NOT NULL,
    verdict            TEXT,
    reason             TEXT,
    parent_id          TEXT,
    problem_id         TEXT,
    problem_hash       TEXT,
    source_hash        TEXT,
    source_artifact_id TEXT,
    language           TEXT,
    host               TEXT,
    device             TEXT,
    driver             TEXT,
    versions           TEXT,
    median_us          REAL,
    speedup            REAL,
    level              TEXT,
    job_id             TEXT,
    note               TEXT,
    evidence           TEXT
);
CREATE INDEX attempts_by_problem ON attempts (problem_id, device, speedup);

CREATE TABLE builds (
    key        TEXT PRIMARY KEY,
    value      BLOB NOT NULL,
    created_at TEXT NOT NULL
);
