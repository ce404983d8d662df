-- What hosts can do, as tried once for each driver.
CREATE TABLE capabilities (
    key        TEXT PRIMARY KEY,
    json       TEXT NOT NULL,
    created_at TEXT NOT NULL
) WITHOUT ROWID;
