"""Recognises an answer of the reference that no candidate can be compared with."""


class BadResult(Exception):
    """The reference returned something else than the problem declares."""
