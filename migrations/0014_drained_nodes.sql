-- Since when no new run gets a place on a node that has joined; 0: runs may.
ALTER TABLE cluster_nodes ADD COLUMN drained_at INTEGER NOT NULL DEFAULT 0;
