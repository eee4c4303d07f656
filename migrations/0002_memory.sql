-- What the next nsad must not have to learn again: a run's counters, and the usual durations of its
-- newest attempt. Written in the same transaction as the newest shim message that is in them.
ALTER TABLE runs ADD COLUMN memory TEXT NOT NULL DEFAULT '{}';
