-- Who asked for what: one row for every request that changes a run or the daemon, refused ones
-- included. A run's rows stay when the run is removed. The newest 10,000 rows of each uid are kept,
-- so that nobody can push another user's rows out.
CREATE TABLE audit (
  sequence INTEGER PRIMARY KEY AUTOINCREMENT,
  at INTEGER NOT NULL,
  uid INTEGER NOT NULL,             -- of the process that asked (SO_PEERCRED)
  user TEXT NOT NULL,               -- its name at that time
  pid INTEGER NOT NULL,
  verb TEXT NOT NULL,               -- submit, stop, cancel, resume, checkpoint, remove, daemon-stop
  run TEXT NOT NULL,                -- id; '' for the daemon's own
  owner INTEGER NOT NULL,           -- uid that the run belongs to; -1: of nobody
  result TEXT NOT NULL,             -- done, refused, failed
  why TEXT NOT NULL                 -- '' when done
) STRICT;
CREATE INDEX audit_by_run ON audit (run, sequence);

-- Whose run it is. Runs of an older nsad have -1: only administrators may change them in system mode.
ALTER TABLE runs ADD COLUMN uid INTEGER NOT NULL DEFAULT -1;
DROP INDEX runs_listed;
CREATE INDEX runs_listed ON runs (open, submitted_at, list_row, uid);
