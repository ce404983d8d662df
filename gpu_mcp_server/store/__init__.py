"""SQLite and files by content: what is remembered."""
