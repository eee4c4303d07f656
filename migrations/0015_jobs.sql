-- Jobs of other schedulers that give runs their nodes; of each run the newest.
CREATE TABLE jobs (
  run TEXT PRIMARY KEY,
  engine TEXT NOT NULL,             -- 'slurm'
  number INTEGER NOT NULL,          -- of the run's jobs
  nodes INTEGER NOT NULL,
  job TEXT NOT NULL,                -- its id there; '': it is being submitted
  state TEXT NOT NULL,              -- in the scheduler's words
  reason TEXT NOT NULL,
  submitted_at INTEGER NOT NULL,
  is_over INTEGER NOT NULL          -- 1: nobody looks after it any more
) STRICT;
