-- Contents that a user has sent and not yet put into a workspace: proof that they have them, and part of their quota.
CREATE TABLE uploads (
    owner      TEXT NOT NULL,
    sha256     TEXT NOT NULL,
    size_bytes INTEGER NOT NULL,
    created_at TEXT NOT NULL,
    PRIMARY KEY (owner, sha256)
) WITHOUT ROWID;
CREATE INDEX workspace_files_by_content ON workspace_files (sha256);
