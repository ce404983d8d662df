"""How a reference's answer can be unfit to be compared with."""


class BadResult(Exception):
    """The reference returned something else than the problem declares."""
