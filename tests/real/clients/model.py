"""A scripted model behind the Anthropic Messages API, on loopback, in this process.

It decides nothing: each turn plays the next step of a script and records what the client sent. It is also the client's
HTTP proxy, so that an attempt to reach any other address is seen and refused.
"""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


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


Step = Callable[[Sequence[Shown]], Use | str]
"""Takes all results so far; returns the next call, or the text that ends the conversation."""


def results(messages: Sequence[dict[str, Any]]) -> list[Shown]:
    """Return the tool results of a conversation in their order."""
    blocks = [b for m in messages if isinstance(m["content"], list) for b in m["content"] if b["type"] == "tool_result"]
    return [Shown(_text(block.get("content") or ""), bool(block.get("is_error"))) for block in blocks]


def _text(content: str | list[dict[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(block.get("text") or json.dumps(block) for block in content)


class ScriptedModel:
    """Plays a script to any number of requests; the turn is told from the request itself."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.conversation: list[dict[str, Any]] = []
        """Bodies of the requests that offered tools."""
        self.strangers: list[str] = []
        """Other addresses that the client wanted to reach."""
        self._failure: Exception | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def shown(self) -> list[Shown]:
        """All tool results that the model was shown."""
        return results(self.conversation[-1]["messages"])

    @property
    def told(self) -> str:
        """Everything but the tools and their results: system text and the user's messages."""
        request = self.conversation[-1]
        return json.dumps([request.get("system"), [m for m in request["messages"] if m["role"] != "assistant"]])

    def tools(self) -> dict[str, dict[str, Any]]:
        """Return the tools of the last request by name."""
        return {tool["name"]: tool for tool in self.conversation[-1]["tools"]}

    def turn(self, request: dict[str, Any]) -> Use | str:
        """Return what the model says next."""
        if not request.get("tools"):
            return "ok"
        self.conversation.append(request)
        said = sum(message["role"] == "assistant" for message in request["messages"])
        if said >= len(self.steps):
            return "the script is at its end"
        so_far = results(request["messages"])
        try:
            return self.steps[said](so_far)
        except Exception as error:
            error.add_note(f"The model had been shown {so_far[-1:]}.")
            self._failure = error
            return "the script failed"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        if error is None and self._failure is not None:
            raise self._failure


def _handler(model: ScriptedModel) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
            path = self.path.partition("?")[0]
            if path == "/v1/messages/count_tokens":
                self._answer({"input_tokens": 1000})
            elif path == "/v1/messages":
                message = _message(str(body.get("model")), model.turn(body))
                if body.get("stream"):
                    self._send(200, "text/event-stream", b"".join(_events(message)))
                else:
                    self._answer(message)
            else:
                self._refuse()

        def _refuse(self) -> None:
            if not self.path.startswith("/"):
                model.strangers.append(self.path)
            self._answer({"type": "error", "error": {"type": "not_found_error", "message": "not here"}}, 404)

        do_GET = do_HEAD = do_CONNECT = _refuse

        def _answer(self, body: dict[str, Any], status: int = 200) -> None:
            self._send(status, "application/json", json.dumps(body).encode())

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


def _message(name: str, said: Use | str) -> dict[str, Any]:
    if isinstance(said, str):
        content: dict[str, Any] = {"type": "text", "text": said}
    else:
        content = {"type": "tool_use", "id": f"toolu_{id(said):x}", "name": said.name, "input": said.input}
    return {
        "id": f"msg_{id(content):x}",
        "type": "message",
        "role": "assistant",
        "model": name,
        "content": [content],
        "stop_reason": "end_turn" if isinstance(said, str) else "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def _events(message: dict[str, Any]) -> Iterator[bytes]:
    """Tell a message as the stream that the API would send."""

    def event(kind: str, **data: Any) -> bytes:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()

    (block,) = message["content"]
    if block["type"] == "text":
        empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
    else:
        empty, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    yield event("message_start", message={**message, "content": [], "stop_reason": None})
    yield event("content_block_start", index=0, content_block=empty)
    yield event("content_block_delta", index=0, delta=delta)
    yield event("content_block_stop", index=0)
    stop = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield event("message_delta", delta=stop, usage={"output_tokens": 1})
    yield event("message_stop")
