"""Meter of the messages between an agent and our tools: counted, bounded, and read for the attempts they name."""

import json
from dataclasses import dataclass, field
from typing import Any, cast

PATIENCE = 5
"""Calls beyond the bound that are still answered, with an error that says to end; then the tools hang up."""
USED_UP = "The {bound} calls of tools of this session are used up. End now with what you have."


@dataclass(frozen=True)
class ToolCall:
    """A call that was answered."""

    number: int
    name: str
    characters: int
    """Of what the model is shown: the structure of a success, the words of an error."""
    is_error: bool
    attempt_ids: tuple[str, ...] = ()
    """Evaluations that it names."""


@dataclass
class Meter:
    """Counts the calls of one session, over all its connections."""

    bound: int
    asked: int = 0
    answered: int = 0
    characters: int = 0

    @property
    def over(self) -> bool:
        """Return whether the agent goes on although it was told to end."""
        return self.asked > self.bound + PATIENCE


@dataclass
class Line:
    """One connection."""

    meter: Meter
    _open: dict[str, str] = field(default_factory=dict[str, str])

    def ask(self, line: bytes) -> bytes | None:
        """Note what an agent sends; return the answer to a call that is beyond the bound."""
        message = _message(line)
        if message.get("method") != "tools/call" or "id" not in message:
            return None
        meter = self.meter
        meter.asked += 1
        if meter.asked > meter.bound:
            said = {"content": [{"type": "text", "text": USED_UP.format(bound=meter.bound)}], "isError": True}
            return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": said}).encode() + b"\n"
        self._open[json.dumps(message["id"])] = str(_table(message.get("params")).get("name", ""))
        return None

    def answer(self, line: bytes) -> ToolCall | None:
        """Note what the tools answer; return the call that it ends."""
        message = _message(line)
        name = self._open.pop(json.dumps(message.get("id")), None) if "method" not in message else None
        if name is None:
            return None
        result = _table(message.get("result"))
        data, is_error = result.get("structuredContent"), bool(result.get("isError")) or "result" not in message
        blocks = cast("list[dict[str, Any]]", result.get("content") or [])
        shown = "".join(str(block.get("text", "")) for block in blocks)
        if data is not None and not is_error:
            shown = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        meter = self.meter
        meter.answered += 1
        meter.characters += len(shown)
        named = _attempts(name, _table(data))
        return ToolCall(meter.answered, name, len(shown), is_error, named)


def _attempts(name: str, data: dict[str, Any]) -> tuple[str, ...]:
    """Return the attempts of an evaluation's result; what they are worth only the store says."""
    if name not in ("evaluate_kernel", "evaluate_kernels", "job_status"):
        return ()
    rows = [data, *(_table(row) for row in cast("list[Any]", data.get("rows") or []))]
    return tuple(str(row["attempt_id"]) for row in rows if row.get("attempt_id"))


def _message(line: bytes) -> dict[str, Any]:
    try:
        return _table(json.loads(line))
    except (ValueError, RecursionError):
        return {}


def _table(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
