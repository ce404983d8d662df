"""Input schemas as agents should see them, and what is said of arguments that do not fit."""

import json
from collections.abc import Collection
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from gpu_mcp_server.models._base import Path, keys_at, model_in

_DROPPED = ("title", "$defs", "examples")
_EITHER = "constrained-str"
"""What pydantic calls the name of a size, where a number may be as well."""
_BRIEF = ("type", "enum", "const", "items", "anyOf", "properties", "required")
_SELF_EVIDENT = {"minimum": (0, 1), "exclusiveMinimum": (0,), "minItems": (1,), "maximum": (64, 1800, 3600, 86_400)}
"""Limits that nobody would cross on purpose; the error says them, so that no conversation pays for them."""


def lean_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return `schema` flat and short: references inlined; no titles, null, or limits that go without saying.

    `additionalProperties` is left out as well: unknown arguments are refused by the server, with the known ones named.
    Where a schema does not tell keys, the first example goes into the description, which clients show to every model.
    """
    lean = cast("dict[str, Any]", _lean(schema, schema.get("$defs", {})))
    lean.setdefault("properties", {})
    lean.pop("additionalProperties", None)
    for name, argument in schema.get("properties", {}).items():
        if "examples" in argument and "properties" not in str(lean["properties"][name]):
            lean["properties"][name]["description"] += f" Example: {json.dumps(argument['examples'][0])}"
    return lean


def brief_schema(model: type[BaseModel], without: Collection[str] = ()) -> dict[str, Any]:
    """Return a model's schema with keys, types and choices alone, for an argument whose description says the rest.

    The schema that pydantic makes has every description, default and limit, which every conversation would pay for.

    Args:
        model: What the argument is checked against.
        without: Keys that callers have no use for.
    """
    brief = cast("dict[str, Any]", _brief(lean_schema(model.model_json_schema())))
    for name in without:
        del brief["properties"][name]
    return brief


def _brief(node: Any) -> Any:
    if isinstance(node, list):
        return [_brief(item) for item in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    node = cast("dict[str, Any]", node)
    brief: dict[str, Any] = {}
    for key, value in node.items():
        if key == "properties":
            brief[key] = {name: _brief(one) for name, one in value.items()}
        elif key in _BRIEF:
            brief[key] = _brief(value)
    return brief


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
                inner = model_in(inner.model_fields[part].annotation)
            elif not isinstance(value, list):
                break
            value, path = cast("Any", value)[part], (*path, part)
        if path and value is None and isinstance(path[-1], str):
            found.add(path)
    return found


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


def describe_bad_arguments(
    tool: str, error: ValidationError, model: type[BaseModel], nulls: Collection[Path] = ()
) -> str:
    """Return one short line for each argument that does not fit, and what such an argument takes.

    Args:
        tool: Name of the tool.
        error: What pydantic found.
        model: The tool's arguments; an argument's first example is shown with its faults.
        nulls: What was sent as null and is not there.
    """
    lines: list[str] = []
    shown: dict[str, str] = {}
    top = False
    for fault in _plain_faults(error):
        line = _fault_line(fault, model, nulls)
        said = f": {fault['msg']} (got"
        lines.append(line.replace(said, ": likewise (got") if any(said in each for each in lines) else line)
        name = str(fault["loc"][0]) if fault["loc"] else ""
        top = top or len(fault["loc"]) < 2
        examples = model.model_fields[name].examples if name in model.model_fields else None
        if examples:
            shown[name] = f" For example {name}: {json.dumps(examples[0])}."
    left_out = f"; and {len(lines) - 8} more" if len(lines) > 8 else ""
    said = f"{tool} cannot use its arguments: {'; '.join(lines[:8])}{left_out}."
    # A fault within an argument has named what may stand there.
    known = f" {tool} takes: {', '.join(model.model_fields)}." if top else ""
    return f"{said}{''.join(shown.values())}{known}"


def _plain_faults(error: ValidationError) -> list[dict[str, Any]]:
    """Return what pydantic found; of what may be one of two types once, as the name of a size that it was to be."""
    faults = cast("list[dict[str, Any]]", error.errors(include_url=False, include_context=False))
    names = {fault["loc"][:-1] for fault in faults if fault["loc"][-1:] == (_EITHER,)}
    plain: list[dict[str, Any]] = []
    for fault in faults:
        if fault["loc"][:-1] not in names:
            plain.append(fault)
        elif fault["loc"][-1] == _EITHER:
            plain.append({**fault, "loc": fault["loc"][:-1], "type": "string_pattern_mismatch"})
    return plain


def _fault_line(fault: dict[str, Any], model: type[BaseModel], nulls: Collection[Path]) -> str:
    path: Path = fault["loc"]
    where = ".".join(str(part) for part in path)
    if fault["type"] == "missing":
        return f"{where} is null, and must be given" if path in nulls else f"{where} is missing"
    given = repr(fault["input"])
    given = given if len(given) <= 60 else given[:57] + "..."
    above = ".".join(str(part) for part in path[:-1])
    if fault["type"] == "extra_forbidden" and above:
        return f"{above} has no key {str(path[-1])!r}; its keys: {', '.join(keys_at(model, path[:-1]))}"
    if fault["type"] == "string_pattern_mismatch":
        return f"{where}: a name is a letter, then letters, digits or _, such as n or rows (got {given})"
    if fault["type"] in ("model_type", "dict_type"):
        keys = ", ".join(keys_at(model, path))
        return f"{where} must be an object" + (f" with some of the keys {keys}" if keys else "") + f" (got {given})"
    return f"{where}: {fault['msg']} (got {given})"
