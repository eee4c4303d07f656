-- The ledger's first schema. Times are wall-clock nanoseconds since 1970 (0: never).
-- `events` is the truth and only ever appended to; the other tables are kept beside it in the same
-- transaction, so that questions need no replay.

CREATE TABLE nodes (
  name TEXT PRIMARY KEY,
  boot_id TEXT NOT NULL,
  build TEXT NOT NULL,
  first_seen INTEGER NOT NULL,
  last_seen INTEGER NOT NULL
) STRICT;

CREATE TABLE runs (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  user TEXT NOT NULL,
  state TEXT NOT NULL,
  open INTEGER NOT NULL,            -- 1: still in the daemon's state
  submitted_at INTEGER NOT NULL,
  ended_at INTEGER NOT NULL DEFAULT 0,
  run_file TEXT NOT NULL,           -- text of the run file as submitted
  file_name TEXT NOT NULL,
  folder TEXT NOT NULL,             -- of the run file
  overrides TEXT NOT NULL,          -- JSON array of key=value
  environment TEXT NOT NULL,        -- JSON object: what run.pass_environment let through
  spec TEXT NOT NULL,               -- JSON, resolved, of the newest attempt
  spec_digest TEXT NOT NULL,
  estimate TEXT NOT NULL,           -- JSON, as said at submission
  summary TEXT NOT NULL             -- JSON: what lists show
) STRICT;
CREATE INDEX runs_by_time ON runs (submitted_at);
CREATE INDEX runs_open ON runs (open) WHERE open = 1;
CREATE INDEX runs_by_name ON runs (name);

CREATE TABLE attempts (
  run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
  attempt INTEGER NOT NULL,
  state TEXT NOT NULL,
  token TEXT NOT NULL DEFAULT '',
  first_step INTEGER NOT NULL DEFAULT 0,
  last_step INTEGER NOT NULL DEFAULT 0,
  failure_class TEXT NOT NULL DEFAULT '',
  reason TEXT NOT NULL DEFAULT '',
  started_at INTEGER NOT NULL DEFAULT 0,
  ended_at INTEGER NOT NULL DEFAULT 0,
  shim_sequence INTEGER NOT NULL DEFAULT 0, -- newest message of the shim that is dealt with
  provenance TEXT NOT NULL DEFAULT '{}',    -- JSON: builds, digests, versions, devices
  PRIMARY KEY (run, attempt)
) STRICT, WITHOUT ROWID;

CREATE TABLE ranks (
  run TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  state TEXT NOT NULL,
  pid INTEGER NOT NULL DEFAULT 0,
  start_time_ticks INTEGER NOT NULL DEFAULT 0,
  device TEXT NOT NULL DEFAULT '',
  compute_precision TEXT NOT NULL DEFAULT '',
  exit TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (run, attempt, rank),
  FOREIGN KEY (run, attempt) REFERENCES attempts (run, attempt) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

CREATE TABLE toggles (
  run TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  name TEXT NOT NULL,
  requested TEXT NOT NULL,
  effective TEXT NOT NULL DEFAULT '',
  origin TEXT NOT NULL,             -- default, file, --set, fallback
  PRIMARY KEY (run, attempt, name),
  FOREIGN KEY (run, attempt) REFERENCES attempts (run, attempt) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

CREATE TABLE checkpoints (
  run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
  step INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  tokens INTEGER NOT NULL,
  bytes INTEGER NOT NULL,
  folder TEXT NOT NULL,
  state TEXT NOT NULL,              -- unverified, verified, corrupt, deleted
  problem TEXT NOT NULL DEFAULT '',
  finite INTEGER NOT NULL,
  written_at INTEGER NOT NULL,
  PRIMARY KEY (run, step)
) STRICT, WITHOUT ROWID;

CREATE TABLE gpu_leases (
  slot TEXT PRIMARY KEY,            -- GPU UUID or CPU slot
  run TEXT NOT NULL,
  since INTEGER NOT NULL
) STRICT;

CREATE TABLE events (
  sequence INTEGER PRIMARY KEY AUTOINCREMENT,
  at INTEGER NOT NULL,
  run TEXT NOT NULL,                -- '' for the node's own
  attempt INTEGER NOT NULL,
  rank INTEGER NOT NULL,            -- -1: not about one rank
  kind TEXT NOT NULL,
  severity TEXT NOT NULL,
  text TEXT NOT NULL,
  detail TEXT NOT NULL,             -- JSON
  replay INTEGER NOT NULL,          -- 1: `detail` is the body of an event of the state machine
  shim_sequence INTEGER NOT NULL
) STRICT;
CREATE INDEX events_by_run ON events (run, sequence);
