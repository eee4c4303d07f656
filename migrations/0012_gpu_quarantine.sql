-- GPUs of this node that no run gets until a person releases them. From here on a run's events tell of them, and a run may wait in
-- the queue again after a failure: an older nsad refuses the ledger.
CREATE TABLE gpu_quarantine (
  uuid TEXT PRIMARY KEY,
  why TEXT NOT NULL,
  run TEXT NOT NULL,                -- whose attempt showed the fault; '': no rank computed on it
  since INTEGER NOT NULL
) STRICT;
