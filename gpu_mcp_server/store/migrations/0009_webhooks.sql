-- Of which finished jobs their users' webhooks were told, and how that went.
CREATE TABLE webhook_deliveries (
    job_id  TEXT PRIMARY KEY,
    at      TEXT NOT NULL,
    outcome TEXT NOT NULL
) WITHOUT ROWID;
