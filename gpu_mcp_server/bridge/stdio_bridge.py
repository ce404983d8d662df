"""The loop between a client's stdio and the server: every request is answered, by the server or by a named error."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from gpu_mcp_server.bridge.eras import Handshake, is_modern, object_of, older_answer
from gpu_mcp_server.bridge.file_arguments import FileArguments, PreparedCall
from gpu_mcp_server.bridge.file_push import FilePusher
from gpu_mcp_server.bridge.project_files import Folders
from gpu_mcp_server.bridge.team_server import PROTOCOL, TeamServer
from gpu_mcp_server.errors import GpuMcpError

PARSE_ERROR, INVALID_REQUEST, INTERNAL_ERROR, REFUSED = -32700, -32600, -32603, -32000
ROOTS_ID = "gpu-mcp-server/roots"
LISTENING_ID = "gpu-mcp-server/listening"
FIRST_S = 20.0
"""For the server to say what it is: clients wait no longer for a server to begin."""
Message = dict[str, Any]
logger = logging.getLogger(__name__)


class StdioBridge:
    """Serves one client."""

    def __init__(
        self, server: TeamServer, started_in: Path, write: Callable[[bytes], None], *, local_files: bool = True
    ) -> None:
        """Keep both ends.

        Args:
            server: The team's.
            started_in: The folder whose files may travel.
            write: Gives the client a line.
            local_files: Whether any file may travel.
        """
        self._server, self._write = server, write
        self._files = FileArguments(Folders(started_in, closed=not local_files), FilePusher(server))
        self._handshake: Handshake | None = None
        self._running: dict[int | str, asyncio.Task[None]] = {}
        self._progress: dict[int | str, float] = {}
        self._watched: set[str] = set()
        self._listening: asyncio.Task[None] | None = None

    async def run(self, lines: AsyncIterator[bytes]) -> None:
        """Serve until the client hangs up; then end what it waits for."""
        async with self._server.hold_connections():
            async for line in lines:
                if line.strip():
                    self._take(line)
            tasks = [*self._running.values(), *([self._listening] if self._listening else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _take(self, line: bytes) -> None:
        try:
            read: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            self._fail(None, PARSE_ERROR, f"The message was not carried out: it is no JSON: {error}.")
            return
        message = cast("Message", read) if isinstance(read, dict) else {}
        method, at = message.get("method"), message.get("id")
        if isinstance(method, str) and "id" not in message:
            self._notified(method, object_of(message, "params"))
        elif isinstance(method, str) and isinstance(at, int | str) and not isinstance(at, bool):
            self._running[at] = task = asyncio.create_task(self._answer(at, message), name=f"{method} {at}")
            task.add_done_callback(lambda _: self._running.pop(at, None) if self._running.get(at) is task else None)
        elif at == ROOTS_ID and "result" in message:
            self._files.folders.declare(_roots_of(message["result"]))
        elif at != ROOTS_ID:
            self._fail(None, INVALID_REQUEST, "The message was not carried out: it is no JSON-RPC 2.0 request.")

    def _notified(self, method: str, params: Message) -> None:
        if method == "notifications/cancelled":
            at = params.get("requestId")
            task = self._running.get(at) if isinstance(at, int | str) else None
            if task is not None:
                task.cancel()
        elif method in ("notifications/initialized", "notifications/roots/list_changed"):
            if self._handshake is not None and self._handshake.has_roots:
                self._send({"id": ROOTS_ID, "method": "roots/list"})
            if method == "notifications/initialized":
                self._listen()

    async def _answer(self, at: int | str, message: Message) -> None:
        """Answer a request, whatever happens; one that is cancelled gets no answer."""
        try:
            answer = await self._answered(message)
        except GpuMcpError as error:
            if message["method"] == "tools/call":
                self._send({"id": at, "result": _tool_error(str(error))})
            else:
                self._fail(at, REFUSED, str(error))
        except Exception as error:
            logger.exception("%s broke", message["method"])
            self._fail(at, INTERNAL_ERROR, f"{message['method']} broke in the bridge: {type(error).__name__}: {error}.")
        else:
            self._send(answer)

    async def _answered(self, message: Message) -> Message:
        method = message["method"]
        if method == "ping":
            return {"id": message["id"], "result": {}}
        if method == "initialize":
            return await self._welcome(message)
        older = None if is_modern(message) else self._handshake
        if older is not None and method in ("resources/subscribe", "resources/unsubscribe"):
            uri = str(object_of(message, "params").get("uri"))
            (self._watched.add if method.endswith("/subscribe") else self._watched.discard)(uri)
            self._listen()
            return {"id": message["id"], "result": {}}
        asked = older.modern(message) if older is not None else message
        answer = await (self._called(asked) if method == "tools/call" else self._server.ask(asked, self._hear))
        return older_answer(answer) if older is not None else answer

    async def _welcome(self, message: Message) -> Message:
        self._handshake = handshake = Handshake(object_of(message, "params"))
        asked = handshake.modern({**message, "method": "server/discover", "params": {}})
        answer = await self._server.ask(asked, self._hear, patience_s=FIRST_S)
        if "result" not in answer:
            version = (await self._server.send("GET", "/healthz")).get("version")
            raise GpuMcpError(
                f"{self._server.address} is gpu-mcp-server {version} and does not speak MCP {PROTOCOL}, which "
                f"`connect` needs: {answer['error'].get('message')}.",
                hint="Ask its admin for an upgrade, or register its address with the client directly.",
            )
        return {**answer, "result": handshake.welcome(answer["result"])}

    async def _called(self, message: Message) -> Message:
        params, key = dict(object_of(message, "params")), uuid4().hex
        token = object_of(params, "_meta").get("progressToken")
        token = token if isinstance(token, int | str) else None

        async def says(text: str) -> None:
            if token is not None:
                said = {"progressToken": token, "progress": 0.0, "message": text}
                await self._hear({"method": "notifications/progress", "params": said})

        arguments = params.get("arguments")
        prepared = PreparedCall(str(params.get("name")), {})
        if isinstance(arguments, dict):
            prepared = await self._files.prepare(prepared.tool, cast("Message", arguments), key, says)
            params |= {"name": prepared.tool, "arguments": prepared.arguments}
        try:
            answer = await self._server.ask({**message, "params": params}, self._hear, key=key)
        except asyncio.CancelledError:
            await self._server.try_once("DELETE", f"/calls/{key}")
            raise
        finally:
            self._progress.pop(token, None) if token is not None else None
        return _noted(answer, prepared.note)

    def _listen(self) -> None:
        """Listen anew for what a client of the older era is told without asking."""
        if self._listening is not None:
            self._listening.cancel()
        if self._handshake is not None:
            self._listening = asyncio.create_task(self._heard_all(self._handshake), name="listening")

    async def _heard_all(self, handshake: Handshake) -> None:
        wanted = {"toolsListChanged": True, "resourceSubscriptions": sorted(self._watched)}
        asked = {"id": LISTENING_ID, "method": "subscriptions/listen", "params": {"notifications": wanted}}

        async def hear(message: Message) -> None:
            if message["method"] != "notifications/subscriptions/acknowledged":
                await self._hear(message)

        while True:
            try:
                await self._server.ask({"jsonrpc": "2.0", **handshake.modern(asked)}, hear)
            except GpuMcpError as error:
                logger.warning("nothing is heard of what changes at the server: %s", error)
                await asyncio.sleep(60.0)
            await asyncio.sleep(1.0)

    async def _hear(self, message: Message) -> None:
        """Pass on a notification; progress goes up, also where a server that was started anew counts from zero."""
        if message["method"] == "notifications/progress":
            params = dict(message["params"])
            token = params["progressToken"]
            params["progress"] = max(float(params["progress"]), self._progress.get(token, -0.001) + 0.001)
            self._progress[token] = params["progress"]
            message = {**message, "params": params}
        self._send(message)

    def _send(self, message: Message) -> None:
        self._write(json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n")

    def _fail(self, at: int | str | None, code: int, said: str) -> None:
        self._send({"id": at, "error": {"code": code, "message": said}})


def _noted(answer: Message, note: str) -> Message:
    """Return the answer of a tool with a note, in its data and in its text: clients show one of them."""
    result = answer.get("result")
    if not note or not isinstance(result, dict):
        return answer
    found = dict(cast("Message", result))
    data = found.get("structuredContent")
    if isinstance(data, dict):
        found["structuredContent"] = {**cast("Message", data), "upload": note}
    found["content"] = [*(found.get("content") or []), {"type": "text", "text": f"upload: {note}"}]
    return {**answer, "result": found}


def _tool_error(said: str) -> Message:
    return {"content": [{"type": "text", "text": said}], "isError": True, "resultType": "complete"}


def _roots_of(result: Any) -> list[Path]:
    listed = cast("Message", result).get("roots") if isinstance(result, dict) else None
    found: list[Path] = []
    for each in cast("list[Any]", listed)[:100] if isinstance(listed, list) else []:
        uri = cast("Message", each).get("uri") if isinstance(each, dict) else None
        parts = urlsplit(uri) if isinstance(uri, str) else None
        if parts is not None and parts.scheme == "file" and parts.netloc in ("", "localhost"):
            found.append(Path(unquote(parts.path)))
    return found
