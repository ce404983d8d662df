-- An artifact has one name, that under which its content came first. An attempt keeps the name of its own source.
ALTER TABLE attempts ADD COLUMN source_name TEXT;
