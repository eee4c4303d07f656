-- What a list of runs shows of each, as a JSON array (common/wire/run_row.h): read from the index
-- alone, so that a long list touches none of the large columns.
ALTER TABLE runs ADD COLUMN list_row TEXT NOT NULL DEFAULT '';
UPDATE runs SET list_row = json_array(
  id, name, state, summary->>'$.summary.reason', summary->>'$.summary.attempt',
  summary->>'$.summary.ranks', summary->>'$.summary.restarts', 0, summary->>'$.summary.hangs',
  summary->>'$.summary.step', summary->>'$.summary.steps', summary->>'$.summary.tokens',
  json(CASE summary->>'$.summary.has_loss' WHEN 1 THEN 'true' ELSE 'false' END),
  summary->>'$.summary.loss',
  json(CASE summary->>'$.summary.has_heldout_loss' WHEN 1 THEN 'true' ELSE 'false' END),
  summary->>'$.summary.heldout_loss', summary->>'$.summary.tokens_per_second', 0,
  json_array(), submitted_at, summary->>'$.summary.started_at', ended_at, 0,
  summary->>'$.summary.inject', user, '', json_array());
CREATE INDEX runs_listed ON runs (open, submitted_at, list_row);
