"""Base of every data model."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, PrivateAttr


class Model(BaseModel):
    """Immutable data whose attribute docstrings become the JSON schema's descriptions."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class PagedModel(Model):
    """Part of a list that goes on; what a shorter text leaves out of a page begins the next."""

    offset: int | None = None
    """How many come before these; absent: none."""
    total: int | None = None
    """How many there are."""

    def count_after(self, shown: int) -> int:
        """Return how many come behind those that are shown."""
        return max((self.total or 0) - (self.offset or 0) - shown, 0)

    def page_text(self, shown: int) -> str:
        """Say how to see what comes behind those that are shown; empty if nothing does."""
        first, end = (self.offset or 0) + 1, (self.offset or 0) + shown
        return f"({first} to {end} of {self.total}; go on with offset {end})" if self.count_after(shown) else ""


class ResultModel(Model):
    """A model that a tool returns: complete as data, and able to say itself as text."""

    _whole: Self | None = PrivateAttr(default=None)

    @property
    def whole(self) -> Self:
        """The result before an agent's budget shortened it: counts and means over a list are of that one's."""
        return self._whole or self

    def shorten_to(self, data: dict[str, Any]) -> Self:
        """Return this result with shorter data.

        Raises:
            ValidationError: If the data is none of this kind of result.
        """
        short = self.model_validate(data)
        short._whole = self
        return short

    def summary(self) -> str:
        """Say all that an agent needs for its next step, the decisive line first."""
        raise NotImplementedError(type(self).__name__)  # pragma: no cover
