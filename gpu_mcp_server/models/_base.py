"""Base of every data model."""

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """Immutable data whose attribute docstrings become the JSON schema's descriptions."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ResultModel(Model):
    """A model that a tool returns: complete as data, and able to say itself as text."""

    def summary(self) -> str:
        """Say all that an agent needs for its next step, the decisive line first."""
        raise NotImplementedError(type(self).__name__)  # pragma: no cover
