BEGIN TRANSACTION;
CREATE TABLE artifacts (
    artifact_id TEXT PRIMARY KEY,
    sha256      TEXT NOT NULL UNIQUE,
    name        TEXT NOT NULL,
    media_type  TEXT,
    size_bytes  INTEGER NOT NULL,
    created_at  TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "artifacts" VALUES('b-8c6659afbb2434e1','8c6659afbb2434e1c3661f79a3a0906259e03aa69f9663f093b24d4dd6eccc84','k.c','text/x-c',31,'2026-11-25T12:25:56.353945+00:00');
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
INSERT INTO "attempts" VALUES(1,'a-1j133ms6ab1871','evaluate','2026-11-25T12:25:56.363549+00:00','judged','correct','all elements are right',NULL,'p-a528cffac2e7','a528cffac2e73b358625e7d7bf9ffd9b0be2064923a88574ca031f06eb46130c',NULL,'b-8c6659afbb2434e1','c','local','cpu',NULL,NULL,12.5,1.5,NULL,NULL,NULL,NULL);
INSERT INTO "attempts" VALUES(2,'a-1j133ms6alqkkc','run','2026-11-25T12:25:56.363950+00:00','ok',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'local',NULL,NULL,NULL,NULL,NULL,NULL,'j-1-aa',NULL,NULL);
CREATE TABLE builds (
    key        TEXT PRIMARY KEY,
    value      BLOB NOT NULL,
    created_at TEXT NOT NULL
);
INSERT INTO "builds" VALUES('k',X'01','2026-01-01 00:00:00');
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
INSERT INTO "jobs" VALUES(1,'j-1-aa','local','run','w-a41b930f9159','a-1j133ms6alqkkc','2026-11-25T12:25:56.364078+00:00','{}','{"id": "j-1-aa", "state": "finished", "purpose": "run", "status": "ok", "note": "", "level": null, "weaker_because": "", "processes": [{"role": "main", "exit_code": 0, "signal": null, "peak_memory_bytes": null, "oom_kills": 0}], "gpus": [], "submitted_at": 0.0, "started_at": null, "ended_at": null, "wall_s": null, "stdout_bytes": 0, "stderr_bytes": 0, "stdout_kept": 0, "stderr_kept": 0, "outputs": [], "outputs_left_out": []}');
CREATE TABLE problems (
    seq          INTEGER PRIMARY KEY,
    problem_id   TEXT NOT NULL UNIQUE,
    content_hash TEXT NOT NULL UNIQUE,
    created_at   TEXT NOT NULL,
    json         TEXT NOT NULL
);
INSERT INTO "problems" VALUES(1,'p-a528cffac2e7','a528cffac2e73b358625e7d7bf9ffd9b0be2064923a88574ca031f06eb46130c','2026-11-25T12:25:56.360478+00:00','{"problem_id":"p-a528cffac2e7","content_hash":"a528cffac2e73b358625e7d7bf9ffd9b0be2064923a88574ca031f06eb46130c","name":"twice","description":"Doubles.","framework":"numpy","entry":"reference","inputs":[{"name":"x","dtype":"float32","shape":["n"],"distribution":"normal"}],"outputs":[{"name":"y","dtype":"float32","shape":["n"],"distribution":"normal"}],"shapes":[{"n":1000}],"rtol":0.00001,"atol":1e-6,"reference":"def reference(x):\n    return 2 * x\n"}');
CREATE TABLE workspace_files (
    workspace_id TEXT NOT NULL REFERENCES workspaces (workspace_id) ON DELETE CASCADE,
    path         TEXT NOT NULL,
    sha256       TEXT NOT NULL,
    size_bytes   INTEGER NOT NULL,
    mode         INTEGER NOT NULL,
    PRIMARY KEY (workspace_id, path)
) WITHOUT ROWID;
INSERT INTO "workspace_files" VALUES('w-a41b930f9159','k.c','8c6659afbb2434e1c3661f79a3a0906259e03aa69f9663f093b24d4dd6eccc84',31,420);
CREATE TABLE workspaces (
    workspace_id TEXT PRIMARY KEY,
    created_at   TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "workspaces" VALUES('w-a41b930f9159','2026-11-25T12:25:56.359533+00:00');
CREATE INDEX attempts_by_problem ON attempts (problem_id, device, speedup);
COMMIT;
