"""When rounds of another kind are due between a shape's timed ones."""

from typing import List

from ..numerics.random_inputs import Well

ROUNDS = 2
"""That are due behind the first ones."""
SELDOM = 16
"""Behind one in so many of the later ones another is due."""


class Agenda:
    """Behind which rounds of a shape one is due: drawn, so that nobody can count on it."""

    def __init__(self, well: Well) -> None:
        self.well, self.first = well, 0
        self.places: List[int] = []

    def begin(self, first: int) -> None:
        """Draw behind which of so many first rounds."""
        self.first, self.places = first, [int(place) for place in self.well.positions(ROUNDS, first)]

    def due(self, played: int) -> int:
        """Return how many are due when so many rounds were played before the last.

        A round that the judge tried before may have counted as the first: what was due behind it is due now.
        """
        due = sum(place <= played for place in self.places)
        self.places = [place for place in self.places if place > played]
        return due + (played >= self.first and self.well.word() % SELDOM == 0)
