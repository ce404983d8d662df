-- What torch.compile makes of a problem's reference, measured once for each problem, device and torch.
CREATE TABLE baselines (
    key        TEXT PRIMARY KEY,
    json       TEXT NOT NULL,
    created_at TEXT NOT NULL
) WITHOUT ROWID;
