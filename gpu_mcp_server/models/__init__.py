"""Nouns: frozen data that passes between rooms. No I/O here."""
