"""Formats that a problem can be imported from, one module each; the content says which one it is."""
