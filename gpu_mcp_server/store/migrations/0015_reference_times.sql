-- What a problem's reference took on a GPU in each evaluation that ended correct, by all that it depends on (key).
-- calls: of a round.
CREATE TABLE reference_times (
    key        TEXT NOT NULL,
    attempt_id TEXT NOT NULL,
    calls      INTEGER NOT NULL,
    median_us  REAL NOT NULL,
    PRIMARY KEY (key, attempt_id)
) WITHOUT ROWID;
