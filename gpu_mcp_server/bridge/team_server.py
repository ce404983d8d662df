"""One team's server over HTTP: requests are repeated while the line or the server is away, and refusals are named."""

import asyncio
import base64
import hashlib
import json
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx2

from gpu_mcp_server.errors import BadRequest, GpuMcpError, HostUnavailable, NotFound, QuotaExceeded

PATIENCE_S = 120.0
"""So long a server may be away before a request is given up."""
PAUSES_S = (0.1, 0.3, 1.0, 2.0, 4.0)
"""Between two tries; the last one again and again."""
SILENT_S = 45.0
"""Of a line that is dead: the server says a word every 15 s while a call runs."""
AGAIN_S = 60.0
"""The longest wait that a server may ask for."""
AWAY = frozenset((408, 425, 429, 500, 502, 503, 504))
"""Statuses of a server, or a proxy before it, that may answer later."""
LOST_CODE = -32050
"""Of a call that did not get to its end: the server was told to end. Its key brings it back."""
PROTOCOL = "2026-07-28"
PLAIN = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
NAMES = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}

HASH_HEADER = "X-Content-SHA256"

Says = Callable[[str], Awaitable[None]]
Hears = Callable[[dict[str, Any]], Awaitable[None]]


class LineLost(Exception):
    """The line or the server went away; the same request may succeed later."""

    def __init__(self, why: str, again_s: float = 0.0) -> None:
        super().__init__(why)
        self.again_s = again_s


class _TooManyRequests(LineLost):
    """The server takes no more requests of this user for now."""


class TeamServer:
    """Speaks to the server at an address with the token that is kept for it."""

    def __init__(self, address: str, token: Callable[[], str], *, patience_s: float = PATIENCE_S) -> None:
        """Keep where it is.

        Args:
            address: As `https://gpu.example.org`.
            token: Returns the kept token; asked anew when the server refuses the one before.
            patience_s: How long the server may be away.
        """
        self.address = address
        self._token, self._patience_s = token, patience_s
        self._http: httpx2.AsyncClient | None = None
        self._shown: str = ""

    @asynccontextmanager
    async def hold_connections(self) -> AsyncGenerator["TeamServer"]:
        """Keep connections open for the block."""
        timeouts = httpx2.Timeout(SILENT_S, connect=10.0)
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=30.0)
        async with httpx2.AsyncClient(base_url=self.address, timeout=timeouts, limits=limits) as http:
            self._http, self._shown = http, self._token()
            yield self

    async def ask(
        self, message: Mapping[str, Any], hears: Hears, *, key: str | None = None, patience_s: float | None = None
    ) -> dict[str, Any]:
        """Send a request of MCP until it is answered, and return the answer.

        Args:
            message: Of the era of 2026, with its `_meta`.
            hears: Told each notification that comes meanwhile.
            key: By which the server knows the request again.
            patience_s: How long the server may be away, if another time than always.

        Raises:
            BadRequest: If the server refuses it.
            HostUnavailable: If there was no answer for too long.
            QuotaExceeded: If for so long it took no more requests of this user.
        """
        body = json.dumps(message).encode()
        headers = {**_headers_of(message), **({"Idempotency-Key": key} if key else {})}
        return await self._patiently(lambda: self._asked(body, headers, message.get("id"), hears), patience_s)

    async def send(self, method: str, path: str, *, content: bytes = b"", **query: str | int) -> Any:
        """Send a request that may be sent twice, and return its answer from JSON.

        Raises:
            BadRequest: If the server refuses it.
            HostUnavailable: If there was no answer for too long.
        """
        return await self._patiently(lambda: self._sent(method, path, content, query))

    async def send_once(self, method: str, path: str, *, content: bytes = b"") -> Any:
        """Send a request that must not be sent twice, and return its answer from JSON.

        Raises:
            BadRequest: If the server refuses it.
            HostUnavailable: If there was no answer: whether it was done is not known.
        """
        try:
            return await self._sent(method, path, content, {})
        except _TokenRefused as refused:
            raise BadRequest(f"{self.address} does not take the token: {refused}.") from None
        except (httpx2.HTTPError, LineLost) as lost:
            raise HostUnavailable(
                f"{self.address} did not answer: {_why(lost)}.", hint="Look whether it was done before you repeat it."
            ) from lost

    async def _sent(self, method: str, path: str, content: bytes, query: Mapping[str, str | int]) -> Any:
        headers = self._authorized({})
        answer = await self._client().request(method, path, content=content, params=dict(query), headers=headers)
        self._check(answer.status_code, answer.headers, answer.content)
        return answer.json()

    async def fetch(self, path: str) -> bytes:
        """Return a content that is small enough for the memory."""

        async def fetched() -> bytes:
            answer = await self._client().get(path, headers=self._authorized({}))
            self._check(answer.status_code, answer.headers, answer.content)
            return answer.content

        return await self._patiently(fetched)

    async def download(self, path: str, target: Path, says: Says) -> int:
        """Write a content to a file and return its size; what came before a line broke is kept in `TARGET.part`.

        Raises:
            BadRequest: If the server has no such thing.
            HostUnavailable: If the line stays away; the next try goes on from the part.
            GpuMcpError: If what came is not what the server said it is.
        """
        part, found, sha256 = target.with_name(f"{target.name}.part"), "", ""
        for _ in range(2):  # a part of another content is found out at the end, and fetched anew
            sha256 = await self._patiently(lambda: self._downloaded(path, part, says))
            found, size = await asyncio.to_thread(_hash_file, part)
            if found == sha256:
                await asyncio.to_thread(part.replace, target)
                return size
            await asyncio.to_thread(part.unlink)
        raise GpuMcpError(f"What came as {target.name!r} has the hash {found}, not {sha256}.", hint="Try again.")

    async def _downloaded(self, path: str, part: Path, says: Says) -> str:
        """Add to a part until the end, and return the hash that the whole shall have. Source: RFC 9110, section 14."""
        have = await asyncio.to_thread(_size, part)
        headers = self._authorized({"Range": f"bytes={have}-"} if have else {})
        async with self._client().stream("GET", path, headers=headers) as answer:
            if answer.status_code == 416:  # nothing is left, or the part is another content's
                await answer.aread()
                head = await self._client().head(path, headers=self._authorized({}))
                return head.headers.get(HASH_HEADER, "")
            if answer.status_code not in (200, 206):
                self._check(answer.status_code, answer.headers, await answer.aread())
            total = have * (answer.status_code == 206) + int(answer.headers.get("content-length", 0))
            with part.open("ab" if answer.status_code == 206 else "wb") as out:
                said_at = time.monotonic()
                async for chunk in answer.aiter_bytes(1 << 20):
                    out.write(chunk)
                    if time.monotonic() - said_at > 1.0:
                        said_at = time.monotonic()
                        await says(f"received {out.tell() / 1e6:.1f} of {total / 1e6:.1f} MB")
            return answer.headers.get(HASH_HEADER, "")

    async def try_once(self, method: str, path: str) -> None:
        """Send a request whose end no one waits for."""
        try:
            await self._client().request(method, path, headers=self._authorized({}), timeout=3.0)
        except httpx2.HTTPError:
            return

    async def _patiently(self, work: Callable[[], Awaitable[Any]], patience_s: float | None = None) -> Any:
        """Repeat what fails as the server is away; a line that brought something begins a new patience."""
        patience_s = self._patience_s if patience_s is None else patience_s
        tried, began, renewed = 0, time.monotonic(), False
        while True:
            at = time.monotonic()
            try:
                return await work()
            except _TokenRefused as refused:
                fresh = self._token()
                if renewed or fresh == self._shown:
                    raise BadRequest(
                        f"{self.address} does not take the token: {refused}.",
                        hint=f"Ask an admin for another and run `gpu-mcp-server login {self.address}`; this "
                        "connection takes it by itself.",
                    ) from None
                self._shown, renewed = fresh, True
                continue
            except (httpx2.HTTPError, LineLost) as lost:
                if time.monotonic() - at > SILENT_S / 2:  # it was there meanwhile, as a proxy that cuts lines lets it
                    began, tried = time.monotonic(), 0
                pause_s = max(PAUSES_S[min(tried, len(PAUSES_S) - 1)], getattr(lost, "again_s", 0.0))
                if time.monotonic() + pause_s > began + patience_s:
                    if isinstance(lost, _TooManyRequests):
                        raise QuotaExceeded(str(lost), hint="The same call may be repeated then.") from lost
                    raise HostUnavailable(
                        f"{self.address} did not answer for {time.monotonic() - began:.0f} s: {_why(lost)}.",
                        hint="The same call may be repeated; gpu_status shows whether a job of it still runs.",
                    ) from lost
            tried += 1
            await asyncio.sleep(pause_s)

    async def _asked(self, body: bytes, headers: dict[str, str], wanted: Any, hears: Hears) -> dict[str, Any]:
        request = self._client().stream("POST", "/mcp", content=body, headers=self._authorized(headers))
        async with request as answer:
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                content = await answer.aread()
                return _unless_lost(self._message(answer, content))
            async for line in answer.aiter_lines():
                if not line.startswith("data:"):
                    continue
                message = json.loads(line[5:])
                if "method" in message:
                    await hears(message)
                elif message.get("id") == wanted:
                    return _unless_lost(message)
        raise LineLost("the line ended before the answer")

    def _message(self, answer: httpx2.Response, content: bytes) -> dict[str, Any]:
        """Return an error of MCP as the answer that it is, whatever its status."""
        said: Any = None
        if answer.status_code not in AWAY and answer.headers.get("content-type", "").startswith("application/json"):
            said = _json(content)
        if isinstance(said, dict) and ("result" in said or isinstance(cast("Any", said).get("error"), dict)):
            return cast("dict[str, Any]", said)
        self._check(answer.status_code, answer.headers, content)
        raise GpuMcpError(
            f"{self.address} answers with what is no message of MCP.", hint="Is it the address of a gpu-mcp-server?"
        )

    def _check(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        if status < 300:
            return
        read = _json(content)
        said = cast("dict[str, Any]", read) if isinstance(read, dict) else {}
        error = said.get("error")
        named = cast("dict[str, Any]", error).get("message") if isinstance(error, dict) else error
        why = str(said.get("error_description") or named or "")
        if status == 401:
            raise _TokenRefused(why or "it is not known there")
        if status in AWAY:
            asked = headers.get("retry-after", "")
            kind = _TooManyRequests if status == 429 else LineLost
            why = why or f"{self.address} answers {status}."
            raise kind(why, min(float(asked), AGAIN_S) if asked.isdigit() else 0.0)
        if status == 413:
            raise BadRequest(
                f"{self.address} takes no request of this size, or a proxy before it does not.",
                hint="Push fewer files at once, or ask its admin to raise team.max_body_mib and the proxy's limit.",
            )
        if status in (404, 405) and not why:
            raise BadRequest(
                f"{self.address} does not know this request: it is an older gpu-mcp-server, or none.",
                hint="What needs uploads, or calls that survive a lost line, takes the version of this program there.",
            )
        if status == 404:
            raise _NotThere(why)
        raise BadRequest(why or f"{self.address} answers {status}.")

    def _authorized(self, headers: dict[str, str]) -> dict[str, str]:
        return {**headers, "Authorization": f"Bearer {self._shown}"} if self._shown else headers

    def _client(self) -> httpx2.AsyncClient:
        assert self._http is not None, "used outside of `hold_connections`"
        return self._http


class _TokenRefused(Exception):
    pass


class _NotThere(NotFound):
    """In the server's own words."""

    def __init__(self, said: str) -> None:
        BadRequest.__init__(self, said)


def _headers_of(message: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers that repeat what a request says. Source: SEP-2243."""
    method = str(message["method"])
    params: dict[str, Any] = message.get("params") or {}
    found = params.get("taskId") if method.startswith("tasks/") else params.get(NAMES.get(method, ""))
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": PROTOCOL,
        "Mcp-Method": method,
    }
    if isinstance(found, str):
        plain = PLAIN.fullmatch(found) and not found.startswith("=?base64?")
        headers["Mcp-Name"] = found if plain else f"=?base64?{base64.b64encode(found.encode()).decode()}?="
    return headers


def _unless_lost(message: dict[str, Any]) -> dict[str, Any]:
    error: dict[str, Any] = message.get("error") or {}
    if error.get("code") == LOST_CODE:
        raise LineLost("the server is being restarted")
    return message


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _hash_file(path: Path) -> tuple[str, int]:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _why(lost: Exception) -> str:
    return str(lost) or type(lost).__name__
