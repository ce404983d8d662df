"""Answer input that is no message of JSON-RPC with an error, and let the server go on.

The SDK drops such a line of stdio without a word, so that the client waits for ever, and lets half a surrogate pair
through to one of its HTTP transports, where the answer then cannot be written.
"""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import anyio
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp.types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectSendStream
    from mcp.server.mcpserver import MCPServer

SHAPE = 'send an object with "jsonrpc": "2.0", a method and, if it wants an answer, an id: a whole number or text'
_FLAT = rb'\s*"\w{1,40}"\s*:\s*(?:"[^"\\]{0,200}"|-?\d{1,20}|true|false|null)\s*,'
FIRST_ID = re.compile(rb'\s*\{(?:%b){0,8}?\s*"id"\s*:\s*(-?\d{1,18}(?=\s*[,}])|"[^"\\]{0,200}")' % _FLAT)
"""The id of a message that cannot be read to its end, where only plain members stand before it."""


def refusal(data: bytes) -> JSONRPCError | None:
    """Return the answer to what is no message, with its id as far as that can be read; None for a message."""
    try:
        str(data, "utf-8")
        message = jsonrpc_message_adapter.validate_json(data.rstrip(), by_name=False)
    except UnicodeDecodeError as error:
        return _error(PARSE_ERROR, f"byte {error.start} is no UTF-8 (0x{data[error.start]:02x}); send UTF-8", data)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if fault["type"] == "json_invalid":
            said = fault["msg"].removeprefix("Invalid JSON: ")
            half = "; a surrogate pair must be whole" if "surrogate" in said or "hex escape" in said else ""
            return _error(PARSE_ERROR, f"it is no JSON: {said}{half}", data)
        return _error(INVALID_REQUEST, f"it is no JSON-RPC: {SHAPE}", data)
    if isinstance(message, JSONRPCNotification) and "id" in json.loads(data):
        return _error(INVALID_REQUEST, f"its id is neither a whole number nor text: {SHAPE}", data)
    return None


def _error(code: int, why: str, data: bytes) -> JSONRPCError:
    message = f"The message was not carried out: {why}."
    return JSONRPCError(jsonrpc="2.0", id=_id_of(data), error=ErrorData(code=code, message=message))


def _id_of(data: bytes) -> int | str | None:
    """Return the id of a request; that of an answer is one of ours, and says nothing to the client."""
    try:
        read: Any = json.loads(data)
    except (ValueError, RecursionError):
        first = FIRST_ID.match(data)
        read = {"id": json.loads(first[1].decode("utf-8", "replace"))} if first else None
    said = cast("dict[str, Any]", read) if isinstance(read, dict) else {}
    found = said.get("id")
    if isinstance(found, bool) or ("method" not in said and ("result" in said or "error" in said)):
        return None
    return found if isinstance(found, int) or (isinstance(found, str) and found.isascii()) else None


class MessageLines:
    """The messages among the lines of a file; who sends another line is told so."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        loop = asyncio.get_running_loop()
        self.answers: asyncio.Future[MemoryObjectSendStream[SessionMessage]] = loop.create_future()
        """Where answers go, once that is known."""

    async def __aiter__(self) -> AsyncIterator[str]:
        async for line in anyio.wrap_file(self._file):
            if not line.strip():
                continue
            refused = refusal(line)
            if refused is None:
                yield line.decode("utf-8")
            else:
                await (await self.answers).send(SessionMessage(refused))


async def serve_lines(server: "MCPServer[Any]") -> None:
    """Serve one client over stdin and stdout, as the SDK does, with an answer to every line."""
    wire = os.dup(sys.stdin.fileno())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())  # what a child reads must not be the client's
    os.close(nothing)
    lines = MessageLines(os.fdopen(wire, "rb", closefd=False))  # a thread may wait in it to the end
    async with stdio_server(stdin=cast("Any", lines)) as (read, write):
        lines.answers.set_result(cast("Any", write))
        inner = server._lowlevel_server  # pyright: ignore[reportPrivateUsage] - the SDK's own `run` takes no lines
        await inner.run(read, write, inner.create_initialization_options())
