"""Content that one store gives another: problems, attempts at them, notes."""

from pydantic import Field

from gpu_mcp_server.models._base import Model
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.problem import Problem

MOST = 500
"""Of each, in one part."""


class SentNote(Model):
    """A note with its place."""

    note_id: str = Field(pattern=r"^n-[0-9a-f]{12}$")
    created_at: str = Field(max_length=40)
    attempt_id: str | None = None
    problem_id: str | None = None
    text: str = Field(min_length=1, max_length=2000)


class StoreExport(Model):
    """A part of a store."""

    problems: list[Problem] = Field(default=[], max_length=MOST)
    attempts: list[Attempt] = Field(default=[], max_length=MOST)
    notes: list[SentNote] = Field(default=[], max_length=MOST)


class Merged(Model):
    """Counts of what a store took from another's export, and the artifacts that it still wants."""

    problems: int = 0
    """New ones; those that were there already are now the sender's too."""
    attempts: int = 0
    notes: int = 0
    left_out: int = 0
    """Attempts and notes that are there already, or whose problem is not the sender's to see."""
    wanted: list[str] = []
    """Artifacts that these attempts name and that the sender has not brought here yet."""
