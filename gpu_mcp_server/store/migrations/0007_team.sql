-- Users, the tokens they show, and whose a handle (workspace, job, attempt, artifact, problem, note) is.
CREATE TABLE users (
    name       TEXT PRIMARY KEY,
    created_at TEXT NOT NULL,
    weight     REAL NOT NULL DEFAULT 1,
    toolsets   TEXT,
    project    TEXT,
    sharing    INTEGER NOT NULL DEFAULT 0,
    quotas     TEXT NOT NULL DEFAULT '{}',
    webhook    TEXT
) WITHOUT ROWID;

-- The secret itself is nowhere: it has 256 bits of chance, so its SHA-256 tells nothing of it.
CREATE TABLE tokens (
    token_id     TEXT PRIMARY KEY,
    user         TEXT NOT NULL REFERENCES users (name),
    kind         TEXT NOT NULL,
    secret_hash  BLOB NOT NULL,
    scopes       TEXT NOT NULL,
    note         TEXT,
    created_at   TEXT NOT NULL,
    expires_at   TEXT,
    revoked_at   TEXT,
    last_used_at TEXT
) WITHOUT ROWID;

-- Content that two users brought belongs to both; what nobody owns was made by whoever runs the program.
CREATE TABLE owners (
    handle TEXT NOT NULL,
    owner  TEXT NOT NULL,
    PRIMARY KEY (handle, owner)
) WITHOUT ROWID;
CREATE INDEX owners_by_owner ON owners (owner);

-- Project '*' is everybody.
CREATE TABLE shares (
    handle  TEXT NOT NULL,
    project TEXT NOT NULL,
    PRIMARY KEY (handle, project)
) WITHOUT ROWID;

CREATE TABLE audit_log (
    seq      INTEGER PRIMARY KEY,
    at       TEXT NOT NULL,
    user     TEXT NOT NULL,
    token_id TEXT,
    action   TEXT NOT NULL,
    handle   TEXT,
    outcome  TEXT NOT NULL,
    address  TEXT
);
CREATE INDEX audit_by_user ON audit_log (user, seq);
