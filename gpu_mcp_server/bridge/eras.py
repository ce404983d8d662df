"""Requests of a client of the handshake's era, as the server is asked: each by itself, with all it must know."""

from collections.abc import Mapping
from typing import Any, cast

from gpu_mcp_server.bridge.team_server import PROTOCOL

META = "io.modelcontextprotocol/"
VERSION_KEY, INFO_KEY, CAPABILITIES_KEY = f"{META}protocolVersion", f"{META}clientInfo", f"{META}clientCapabilities"
HANDSHAKES = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Versions that begin with `initialize`, the newest last."""
NEW_KEYS = ("resultType", "ttlMs", "cacheScope")
"""Of results, which the older era does not have."""


def object_of(message: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a member that is an object; an empty one where it is not there, or something else."""
    found = message.get(name)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def is_modern(message: Mapping[str, Any]) -> bool:
    """Say whether a request brings with it what a handshake would have told."""
    return VERSION_KEY in object_of(object_of(message, "params"), "_meta")


class Handshake:
    """The `initialize` of a client of the older era; adds its contents to each of the client's requests."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._info = object_of(params, "clientInfo") or {"name": "unknown", "version": "0"}
        asked = params.get("protocolVersion")
        self._version = asked if asked in HANDSHAKES else HANDSHAKES[-1]
        self.has_roots = isinstance(object_of(params, "capabilities").get("roots"), dict)

    def modern(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request as the newer era has it; what the server would ask of the client is not offered to it."""
        params = object_of(message, "params")
        own = {VERSION_KEY: PROTOCOL, INFO_KEY: self._info, CAPABILITIES_KEY: {}}
        return {**message, "params": {**params, "_meta": {**object_of(params, "_meta"), **own}}}

    def welcome(self, discovered: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to `initialize` from that to `server/discover`."""
        offered = dict(object_of(discovered, "capabilities"))
        offered.pop("extensions", None)  # tasks are of the newer era
        info = object_of(object_of(discovered, "_meta"), f"{META}serverInfo")
        info = info or {"name": "gpu-mcp-server", "version": "unknown"}
        welcome: dict[str, Any] = {"protocolVersion": self._version, "capabilities": offered, "serverInfo": info}
        if discovered.get("instructions"):
            welcome["instructions"] = discovered["instructions"]
        return welcome


def older_answer(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer as the older era has it."""
    result: dict[str, Any] | None = answer.get("result")
    if result is None:
        return answer
    return {**answer, "result": {name: value for name, value in result.items() if name not in NEW_KEYS}}
