-- Which call judged an attempt together with others, and how far it was judged.
ALTER TABLE attempts ADD COLUMN batch_id TEXT;
ALTER TABLE attempts ADD COLUMN tier TEXT;
