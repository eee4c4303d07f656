-- Whose weights a run began with: the checkpoint of another run, which may be removed by now. An older nsad would begin such
-- a run with random weights, so it refuses the ledger.
ALTER TABLE runs ADD COLUMN from_run TEXT NOT NULL DEFAULT '';        -- id; '': none
ALTER TABLE runs ADD COLUMN from_step INTEGER NOT NULL DEFAULT 0;
CREATE INDEX runs_by_origin ON runs (from_run, submitted_at) WHERE from_run <> '';
