-- An attempt on several nodes has a part, with a shim of its own, on each of them. The first part's newest message stands in
-- attempts.shim_sequence, as that of an attempt on one node. An older nsad does not know node_lost and part_lost, and refuses
-- the ledger.
CREATE TABLE attempt_parts (
  run TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  part INTEGER NOT NULL,           -- 1, 2, ...: in the order of ranks
  shim_sequence INTEGER NOT NULL,  -- newest message of the part's shim that is dealt with, with the part above 48 bits
  PRIMARY KEY (run, attempt, part)
) STRICT;
