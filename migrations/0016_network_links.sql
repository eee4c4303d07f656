-- What the collectives of training got between two nodes, as it was measured last (nsactl node probe).
CREATE TABLE network_links (
  node TEXT NOT NULL,               -- the first of the two by name
  other TEXT NOT NULL,
  latency_seconds REAL NOT NULL,    -- of a message, one way
  bytes_per_second REAL NOT NULL,   -- in each direction, while both send
  measured_at INTEGER NOT NULL,
  PRIMARY KEY (node, other)
) STRICT;
