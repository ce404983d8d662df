"""Input schemas as agents should see them, and what is said of arguments that do not fit."""

from collections.abc import Collection
from typing import Any, TypeAlias, cast, get_args

from pydantic import BaseModel, ValidationError

Path: TypeAlias = tuple[str | int, ...]
"""Names of fields and places in lists, each below the one before."""
_DROPPED = ("title", "$defs")
_SELF_EVIDENT = {"minimum": (0, 1), "exclusiveMinimum": (0,), "minItems": (1,)}
"""Limits that nobody would cross on purpose; the error says them, so that no conversation pays for them."""


def lean_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return `schema` flat and short: references inlined; no titles, null, or limits that go without saying.

    `additionalProperties` is left out as well: unknown arguments are refused by the server, with the known ones named.
    """
    lean = cast("dict[str, Any]", _lean(schema, schema.get("$defs", {})))
    lean.setdefault("properties", {})
    lean.pop("additionalProperties", None)
    return lean


def _lean(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_lean(item, definitions) for item in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    node = cast("dict[str, Any]", node)
    if "$ref" in node:
        name = str(node["$ref"]).rsplit("/", 1)[-1]
        node = {**definitions[name], **{k: v for k, v in node.items() if k != "$ref"}}
    lean: dict[str, Any] = {}
    for key, value in node.items():
        if key == "properties":
            lean[key] = {name: _lean(one, definitions) for name, one in value.items()}
        elif key == "additionalProperties" and isinstance(value, dict):
            continue  # some clients refuse a schema there; the description says what the values are
        elif key == "maxLength" or value in _SELF_EVIDENT.get(key, ()):
            continue
        elif key not in _DROPPED and not (key == "default" and (value in (None, [], "") or isinstance(value, dict))):
            lean[key] = _lean(value, definitions)
    return _without_null(lean)


def _without_null(node: dict[str, Any]) -> dict[str, Any]:
    arms = node.get("anyOf")
    if not arms:
        return node
    kept = [arm for arm in arms if arm != {"type": "null"}]
    rest = {key: value for key, value in node.items() if key != "anyOf"}
    return {**kept[0], **rest} if len(kept) == 1 else {**rest, "anyOf": kept}


def refused_nulls(error: ValidationError, arguments: dict[str, Any], model: type[BaseModel]) -> set[Path]:
    """Return where a field of `model` is null and may not be: clients send that for what they leave out.

    A key that the caller chose, such as a variable's name, is no field, and an element of a list neither.
    """
    found: set[Path] = set()
    for fault in error.errors(include_url=False, include_context=False):
        value: Any = arguments
        inner: type[BaseModel] | None = model
        path: Path = ()
        for part in fault["loc"]:
            if isinstance(part, str):
                if inner is None or not isinstance(value, dict) or part not in inner.model_fields or part not in value:
                    break
                inner = _model_in(inner.model_fields[part].annotation)
            elif not isinstance(value, list):
                break
            value, path = cast("Any", value)[part], (*path, part)
        if path and value is None and isinstance(path[-1], str):
            found.add(path)
    return found


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model that a type is, or has as its element."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def remove_paths(value: Any, paths: set[Path]) -> Any:
    """Return arguments without what lies at these paths."""

    def below(key: str | int) -> set[Path]:
        return {path[1:] for path in paths if path[0] == key}

    if not paths:
        return value
    if isinstance(value, list):
        return [remove_paths(one, below(at)) for at, one in enumerate(cast("list[Any]", value))]
    kept = cast("dict[str, Any]", value).items()
    return {key: remove_paths(one, below(key)) for key, one in kept if (key,) not in paths}


def describe_bad_arguments(tool: str, error: ValidationError, known: list[str], nulls: Collection[Path] = ()) -> str:
    """Return one short line for each argument that does not fit; `nulls` were sent as null and are not there."""
    lines: list[str] = []
    for fault in error.errors(include_url=False, include_context=False):
        where = ".".join(str(part) for part in fault["loc"])
        if fault["type"] == "missing":
            lines.append(f"{where} is null, and must be given" if fault["loc"] in nulls else f"{where} is missing")
            continue
        given = repr(fault["input"])
        lines.append(f"{where}: {fault['msg']} (got {given if len(given) <= 60 else given[:57] + '...'})")
    left_out = f"; and {len(lines) - 8} more" if len(lines) > 8 else ""
    return f"{tool} cannot use its arguments: {'; '.join(lines[:8])}{left_out}. It takes: {', '.join(known)}."
