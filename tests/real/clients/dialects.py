"""Dialects of models' APIs: tools that are offered, results that are shown, what the model says."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Body = dict[str, Any]
EVENTS, JSON = "text/event-stream", "application/json"


@dataclass(frozen=True)
class Shown:
    """One tool result as it reached the model."""

    text: str
    is_error: bool

    @property
    def data(self) -> dict[str, Any]:
        """The structure it was shown."""
        return json.loads(self.text)


@dataclass(frozen=True)
class Use:
    """A tool that the model wants called."""

    name: str
    input: dict[str, Any]


class Dialect(Protocol):
    """One API."""

    def offered(self, body: Body) -> dict[str, Body]:
        """Return the tools of a request by name."""
        ...

    def said(self, body: Body) -> int:
        """Return how often the model has spoken."""
        ...

    def results(self, body: Body) -> list[Shown]:
        """Return the tool results of a conversation in their order."""
        ...

    def answer(self, body: Body, said: Use | str) -> tuple[str, bytes]:
        """Return content type and body of what the model says."""
        ...


def dialect_of(path: str) -> Dialect | None:
    """Return the API that a path belongs to."""
    known: dict[str, Dialect] = {
        "/v1/messages": Messages(),
        "/v1/responses": Responses(),
        "/v1/chat/completions": Completions(),
    }
    return known.get(path) or (Gemini(path) if "enerateContent" in path else None)


def events(*told: Body) -> bytes:
    """Return server-sent events, each with its type's name."""
    return b"".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in told)


class Messages:
    """Anthropic's."""

    def offered(self, body: Body) -> dict[str, Body]:
        return {tool["name"]: tool for tool in body.get("tools") or []}

    def said(self, body: Body) -> int:
        return sum(message["role"] == "assistant" for message in body["messages"])

    def results(self, body: Body) -> list[Shown]:
        told = [m["content"] for m in body["messages"] if isinstance(m["content"], list)]
        blocks = [b for blocks in told for b in blocks if b["type"] == "tool_result"]
        return [Shown(_text(block.get("content") or ""), bool(block.get("is_error"))) for block in blocks]

    def answer(self, body: Body, said: Use | str) -> tuple[str, bytes]:
        if isinstance(said, str):
            block: Body = {"type": "text", "text": said}
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": said}
        else:
            block = {"type": "tool_use", "id": f"toolu_{id(said):x}", "name": said.name, "input": said.input}
            empty, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(said.input)}
        stop = "end_turn" if isinstance(said, str) else "tool_use"
        message = {
            "id": f"msg_{id(block):x}", "type": "message", "role": "assistant", "model": str(body.get("model")),
            "content": [block], "stop_reason": stop, "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }  # fmt: skip
        if not body.get("stream"):
            return JSON, json.dumps(message).encode()
        ended = {"stop_reason": stop, "stop_sequence": None}
        return EVENTS, events(
            {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}},
            {"type": "content_block_start", "index": 0, "content_block": empty},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        )


class Responses:
    """OpenAI's newer one, which Codex speaks; tools of a server may stand in a namespace."""

    def offered(self, body: Body) -> dict[str, Body]:
        found: dict[str, Body] = {}
        for tool in body.get("tools") or []:
            for inner in tool.get("tools", [tool]):
                space = {"namespace": tool["name"]} if "tools" in tool else {}
                found[inner.get("name", inner.get("type", ""))] = {**inner, **space}
        return found

    def said(self, body: Body) -> int:
        return sum(item.get("type") == "function_call" for item in body["input"])

    def results(self, body: Body) -> list[Shown]:
        told = [item["output"] for item in body["input"] if item.get("type") == "function_call_output"]
        return [Shown(_text(output), False) for output in told]

    def answer(self, body: Body, said: Use | str) -> tuple[str, bytes]:
        number = f"{id(said):x}"
        if isinstance(said, str):
            told = [{"type": "output_text", "text": said, "annotations": []}]
            item: Body = {"type": "message", "id": f"msg_{number}", "role": "assistant", "content": told}
        else:
            item = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": said.name}
            item["arguments"] = json.dumps(said.input)
            space = self.offered(body).get(said.name, {}).get("namespace")
            item |= {"namespace": space} if space else {}
        item["status"] = "completed"
        response = {"id": f"resp_{number}", "object": "response", "created_at": 0, "model": body.get("model")}
        usage = {
            "input_tokens": 1, "output_tokens": 1, "total_tokens": 2,
            "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
        }  # fmt: skip
        done = {**response, "status": "completed", "output": [item], "usage": usage}
        return EVENTS, events(
            {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": done},
        )


class Completions:
    """OpenAI's older one, which servers of local models speak."""

    def offered(self, body: Body) -> dict[str, Body]:
        return {tool["function"]["name"]: tool["function"] for tool in body.get("tools") or []}

    def said(self, body: Body) -> int:
        return sum(message["role"] == "assistant" for message in body["messages"])

    def results(self, body: Body) -> list[Shown]:
        told = [(m["role"], _text(m.get("content") or "")) for m in body["messages"]]
        # smolagents says what a tool answered in the user's name
        shown = [text for role, text in told if role == "tool" or (role == "user" and text.startswith("Observation:"))]
        return [Shown(text, False) for text in shown]

    def answer(self, body: Body, said: Use | str) -> tuple[str, bytes]:
        message: Body = {"role": "assistant", "content": said if isinstance(said, str) else None}
        if isinstance(said, Use):
            function = {"name": said.name, "arguments": json.dumps(said.input)}
            message["tool_calls"] = [{"id": f"call_{id(said):x}", "type": "function", "function": function}]
        choice = {"index": 0, "message": message, "finish_reason": "stop" if isinstance(said, str) else "tool_calls"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        told = {"id": "c", "object": "chat.completion", "created": 0, "model": body.get("model"), "choices": [choice]}
        return JSON, json.dumps({**told, "usage": usage}).encode()


@dataclass(frozen=True)
class Gemini:
    """Google's."""

    path: str

    def offered(self, body: Body) -> dict[str, Body]:
        tools = [each for tool in body.get("tools") or [] for each in tool.get("functionDeclarations", [])]
        return {tool["name"]: tool for tool in tools}

    def said(self, body: Body) -> int:
        return sum("functionCall" in part for part in self._parts(body))

    def results(self, body: Body) -> list[Shown]:
        told = [part["functionResponse"]["response"] for part in self._parts(body) if "functionResponse" in part]
        return [Shown(_text(each.get("output", each.get("error", ""))), "error" in each) for each in told]

    def answer(self, body: Body, said: Use | str) -> tuple[str, bytes]:
        call = {"functionCall": {"name": said.name, "args": said.input}} if isinstance(said, Use) else {"text": said}
        candidate = {"content": {"role": "model", "parts": [call]}, "finishReason": "STOP", "index": 0}
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        told = json.dumps({"candidates": [candidate], "usageMetadata": usage, "modelVersion": "scripted"})
        if "stream" in self.path:
            return EVENTS, f"data: {told}\r\n\r\n".encode()
        return JSON, told.encode()

    def _parts(self, body: Body) -> Sequence[Body]:
        return [part for content in body.get("contents", []) for part in content.get("parts", [])]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return json.dumps(content)
    return "\n".join(block.get("text") or json.dumps(block) for block in content)
