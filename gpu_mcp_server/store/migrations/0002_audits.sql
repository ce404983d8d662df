-- What an audit needs to run an attempt again, and what it found.
ALTER TABLE attempts ADD COLUMN flags TEXT;
ALTER TABLE attempts ADD COLUMN entry TEXT;
ALTER TABLE attempts ADD COLUMN target TEXT;
ALTER TABLE attempts ADD COLUMN voided TEXT;
