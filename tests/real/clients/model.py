"""A scripted model behind the APIs that clients speak, on loopback, in this process.

It decides nothing: each turn plays the next step of a script and records what the client sent. It is also the client's
HTTP proxy, so that an attempt to reach any other address is seen and refused.
"""

import json
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from tests.real.clients.dialects import JSON, Body, Dialect, Messages, Shown, Use, dialect_of

__all__ = ["ScriptedModel", "Shown", "Step", "Use"]

HEADLESS = "You are called by a program, once for each step."
"""How each prompt of a headless run begins."""
Step = Callable[[Sequence[Shown]], Use | str]
"""Takes all results so far; returns the next call, or the text that ends the conversation."""


class ScriptedModel:
    """Plays a script to any number of requests; the turn is told from the request itself."""

    def __init__(
        self, steps: Sequence[Step], certificate: Path | None = None, answer: Callable[[str], str] | None = None
    ) -> None:
        """Listen; with a certificate and its key in one file, over TLS.

        With `answer` it says what that returns of each prompt of a headless run, whatever tools a client offers.
        """
        self.steps, self.answer = steps, answer
        self.conversation: list[Body] = []
        """Bodies of the requests that offered tools."""
        self.headers: dict[str, str] = {}
        """Of the last request."""
        self.strangers: list[str] = []
        """Other addresses that the client wanted to reach."""
        self._dialect: Dialect = Messages()
        self._failure: Exception | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._scheme = "http" if certificate is None else "https"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def url(self) -> str:
        """Return the address where it listens."""
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}"

    @property
    def shown(self) -> list[Shown]:
        """All tool results that the model was shown."""
        return self._dialect.results(self.conversation[-1])

    @property
    def told(self) -> str:
        """Return all but the tools and their results: system text and the user's messages."""
        request = self.conversation[-1]
        known = ("system", "messages", "input", "instructions", "contents", "systemInstruction")
        return json.dumps([request.get(name) for name in known])

    def tools(self) -> dict[str, dict[str, Any]]:
        """Return the tools of the last request by name."""
        return self._dialect.offered(self.conversation[-1])

    def turn(self, dialect: Dialect, request: Body) -> Use | str:
        """Return what the model says next."""
        prompt = next((text for text in _texts(request) if HEADLESS in text), None)
        if self.answer is not None and prompt is not None:
            return self.answer(prompt)
        if not dialect.offered(request):
            return "ok"
        self._dialect = dialect
        self.conversation.append(request)
        said = dialect.said(request)
        if said >= len(self.steps):
            return "the script is at its end"
        so_far = dialect.results(request)
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


def _texts(value: Any) -> Iterator[str]:
    """Return all texts within a request."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts([*cast("Body", value).values()])
    elif isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from _texts(each)


def _handler(model: ScriptedModel) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
            path = self.path.partition("?")[0]
            dialect = dialect_of(path)
            model.headers = dict(self.headers)
            if path == "/v1/messages/count_tokens" or path.endswith("countTokens"):
                self._send(200, JSON, json.dumps({"input_tokens": 1000, "totalTokens": 1000}).encode())
            elif dialect is not None:
                self._send(200, *dialect.answer(body, model.turn(dialect, body)))
            else:
                self._refuse()

        def _refuse(self) -> None:
            if not self.path.startswith("/"):
                model.strangers.append(self.path)
            refused = {"type": "error", "error": {"type": "not_found_error", "message": "not here"}}
            self._send(404, JSON, json.dumps(refused).encode())

        do_GET = do_HEAD = do_CONNECT = _refuse

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                with suppress(BrokenPipeError):  # clients that are killed hear nothing more
                    self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
