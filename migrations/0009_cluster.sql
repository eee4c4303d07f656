-- The nodes of the cluster whose head this nsad is, and the tokens that let nodes join. Times as in the first schema.
CREATE TABLE cluster_nodes (
  name TEXT PRIMARY KEY,
  serial TEXT NOT NULL,             -- of the certificate that the node shows
  next_serial TEXT NOT NULL,        -- of one that was signed for it and that it has not shown yet; '': none
  joined_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,      -- of the newest certificate
  removed_at INTEGER NOT NULL       -- 0: it belongs to the cluster; else its certificates are refused
) STRICT;

CREATE TABLE join_tokens (
  digest TEXT PRIMARY KEY,          -- SHA-256 of the secret, which is stored nowhere
  expires_at INTEGER NOT NULL,
  used_by TEXT NOT NULL             -- node; '': nobody yet
) STRICT;

-- Since when no new run starts on this node; 0: runs may start.
ALTER TABLE nodes ADD COLUMN drained_at INTEGER NOT NULL DEFAULT 0;
