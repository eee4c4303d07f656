-- The values of variables that a submitter lets through lie in his own file in the run's folder, and
-- nowhere else. `secure_delete` (open_database.cpp) writes zeros over what this takes away.
ALTER TABLE runs DROP COLUMN environment;
