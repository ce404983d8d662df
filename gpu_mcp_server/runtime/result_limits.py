"""Keeps what an agent reads within its budget, and says what was left out."""

import json
from collections.abc import Iterator
from typing import Any, cast

from pydantic import ValidationError

from gpu_mcp_server.models._base import ResultModel
from gpu_mcp_server.text_safety import escape_controls

RESULT_LIMIT = 7_900
"""Characters of a result, as data and as text alike.

Source:
    Codex cuts tool results at about 12,000 characters, Claude Code and Gemini later; 8,000 stays clear of all.
"""

_NOTES_RESERVE = 400
_TEXT_FLOOR = 300
_ROUNDS = 200

Path = tuple[str | int, ...]


def json_size(data: Any) -> int:
    """Return the characters that `data` takes as compact JSON."""
    return len(json.dumps(data, ensure_ascii=False, separators=(",", ":")))


def cut_text(text: str, keep: int) -> str:
    """Return `text` with its middle left out, so that about `keep` characters of it remain."""
    if len(text) <= keep:
        return text
    head, tail = text[: keep - keep // 2], text[len(text) - keep // 2 :]
    if "\n" in head[len(head) // 2 :]:
        head = head[: head.rindex("\n")]
    if "\n" in tail[: len(tail) // 2]:
        tail = tail[tail.index("\n") + 1 :]
    return f"{head}\n[... {len(text) - len(head) - len(tail)} characters left out ...]\n{tail}"


def limit_result(result: ResultModel, limit: int = RESULT_LIMIT) -> tuple[dict[str, Any], str]:
    """Return the result as data and as text, each at most `limit` characters and saying the same.

    Long texts lose their middle, long lists their end; `shortened` names each, in both.
    """
    data: dict[str, Any] = result.model_dump(mode="json", exclude_none=True)
    text = escape_controls(result.summary())
    if len(text) <= limit and json_size(data) <= limit:
        return data, text
    budget = min(limit, json_size(data))
    short, notes = data, list[str]()
    for _ in range(12):
        short, notes = _shortened(data, budget - _NOTES_RESERVE)
        text = escape_controls(_said_again(result, short)) + "\n(shortened: " + "; ".join(notes) + ")"
        if len(text) <= limit and json_size(short) + json_size(notes) + 20 <= limit:
            break
        budget = budget * 4 // 5
    if notes:
        short["shortened"] = notes
    return short, cut_text(text, limit - 60)


def _said_again(result: ResultModel, data: dict[str, Any]) -> str:
    try:
        return result.shorten_to(data).summary()
    except ValidationError:
        return result.summary()


def _shortened(data: dict[str, Any], budget: int) -> tuple[dict[str, Any], list[str]]:
    """Return a copy of `data` that takes at most `budget` characters, if that can be, and what was left out."""
    copy: dict[str, Any] = json.loads(json.dumps(data))
    texts: dict[Path, tuple[str, int]] = {}
    lists: dict[Path, tuple[int, int]] = {}
    for _ in range(_ROUNDS):
        excess = json_size(copy) - budget
        if excess <= 0:
            break
        chosen = _largest(copy, {p: keep for p, (_, keep) in texts.items()})
        if chosen is None:
            break
        path, value = chosen
        if isinstance(value, str):
            original, keep = texts.get(path, (value, len(value)))
            keep = max(_TEXT_FLOOR, keep - excess - 60)
            texts[path] = (original, keep)
            _put(copy, path, cut_text(original, keep))
        else:
            total = lists.get(path, (len(value), 0))[0]
            while len(value) > 1 and excess > 0:
                excess -= json_size(value.pop()) + 1
            lists[path] = (total, len(value))
    notes = [
        f"{_name(p)}: {len(o) - keep} of {len(o)} characters left out in the middle" for p, (o, keep) in texts.items()
    ]
    notes += [f"{_name(p)}: the last {total - kept} of {total} items left out" for p, (total, kept) in lists.items()]
    return copy, notes[:6]


def _largest(data: dict[str, Any], cut: dict[Path, int]) -> tuple[Path, Any] | None:
    """Return what to shorten next: the longest text if one stands out, otherwise the longest list."""
    texts: list[tuple[int, Path, Any]] = []
    lists: list[tuple[int, Path, Any]] = []
    for path, value in _walk(data, ()):
        if isinstance(value, str) and cut.get(path, len(value)) > _TEXT_FLOOR:
            texts.append((cut.get(path, len(value)), path, value))
        elif isinstance(value, list) and len(cast("list[Any]", value)) > 1:
            lists.append((json_size(value), path, cast("Any", value)))
    text = max(texts, key=lambda t: t[0], default=None)
    items = max(lists, key=lambda t: t[0], default=None)
    chosen = text if text and (items is None or text[0] * 2 > items[0]) else items
    return (chosen[1], chosen[2]) if chosen else None


def _walk(node: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if path:
        yield path, node
    if isinstance(node, dict):
        for key, value in cast("dict[str, Any]", node).items():
            yield from _walk(value, (*path, key))
    elif isinstance(node, list):
        for index, value in enumerate(cast("list[Any]", node)):
            yield from _walk(value, (*path, index))


def _put(data: Any, path: Path, value: Any) -> None:
    for part in path[:-1]:
        data = data[part]
    data[path[-1]] = value


def _name(path: Path) -> str:
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).lstrip(".")
