"""Base of every data model, and what may stand at a place of one."""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Self, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, PrivateAttr
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

Path: TypeAlias = tuple[str | int, ...]
"""Names of fields and places in lists, each below the one before."""
Docs: TypeAlias = dict[str, str]
"""Docstrings of fields, by their names."""
SHOWN = 80
"""Characters of a value that was given."""


class Model(BaseModel):
    """Immutable data whose attribute docstrings become the JSON schema's descriptions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler, /) -> JsonSchemaValue:
        """Describe the fields by their docstrings.

        Pydantic would read them as it makes the class (`use_attribute_docstrings`): a third of the time that all
        models take to import, for processes of which few make a schema.
        """
        made = handler(core_schema)
        properties = handler.resolve_ref_schema(made).get("properties", {})
        for name, text in read_field_docs(cls).items():
            key = cls.model_fields[name].alias or name
            if key in properties:
                properties[key].setdefault("description", text)
        return made


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


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model that a type is, or has as its element."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(model_in, get_args(annotation))), None)


def keys_at(model: type[BaseModel], path: Path) -> list[str]:
    """Return the keys that the object at a path may have; none where it is no model."""
    inner: type[BaseModel] | None = model
    for part in path:
        # What is no field is a key that the writer chose, as an implementation's name, and the model is its value.
        if inner and part in inner.model_fields:
            inner = model_in(inner.model_fields[str(part)].annotation)
    return list(inner.model_fields) if inner else []


def describe_faults(
    model: type[BaseModel], faults: Sequence[Mapping[str, Any]], more: Sequence[str] = ()
) -> tuple[str, str]:
    """Say where and what the first fault is that pydantic found, with all alike, and what may stand there.

    Args:
        model: What was checked.
        faults: What pydantic found.
        more: Keys at the top that are none of the model's.
    """
    # Fields that are missing one after the other would cost a call each.
    alike = [each for each in faults if each["msg"] == faults[0]["msg"]]
    places = ", ".join(".".join(str(part) for part in each["loc"]) for each in alike)
    words: str | None = faults[0].get("ctx", {}).get("expected")
    # Such a message repeats the words, and leaves out what was given.
    given = ", ".join(dict.fromkeys(repr(each["input"])[:SHOWN] for each in alike))
    text = f"{places}: {given} is none of the words there" if words else f"{places}: {faults[0]['msg']}"
    return text, " ".join(dict.fromkeys(_hint(model, each, more) for each in alike))


def _hint(model: type[BaseModel], fault: Mapping[str, Any], more: Sequence[str]) -> str:
    """Say what may stand where a fault is: the words of a choice, or the keys of the object there."""
    above = fault["loc"][:-1]
    words: str | None = fault.get("ctx", {}).get("expected")
    words = words or ", ".join([*(() if above else more), *keys_at(model, above)])
    return f"There it takes {words}." if words else "Correct it."


@cache
def read_field_docs(model: type[BaseModel]) -> Docs:
    """Return the text below each field that has one, where the field was declared last."""
    found: Docs = {}
    for name in model.model_fields:
        owner = next((each for each in model.__mro__ if name in inspect.get_annotations(each)), None)
        text = _docs_in(owner.__module__).get(owner.__qualname__, {}).get(name) if owner else None
        found |= {name: text} if text else {}
    return found


@cache
def _docs_in(module: str) -> dict[str, Docs]:
    """Return the docstrings of the attributes of all classes in a module, by the classes' qualified names."""
    try:
        source = inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):  # as in an interactive session
        return {}
    return dict(_classes(ast.parse(source), ""))


def _classes(node: ast.AST, within: str) -> Iterator[tuple[str, Docs]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield within + child.name, _attributes(child)
            yield from _classes(child, f"{within}{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _classes(child, f"{within}{child.name}.<locals>.")
        elif isinstance(child, ast.stmt):
            yield from _classes(child, within)


def _attributes(node: ast.ClassDef) -> Docs:
    found: Docs = {}
    for field, below in zip(node.body, node.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            found[field.target.id] = inspect.cleandoc(below.value.value)
    return found
