"""Formats that a problem can be imported from, one module each; the content says which it is.

Each returns the same request for registration. What makes a problem valid is in services/problems.
"""
