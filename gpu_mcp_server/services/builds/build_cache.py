"""Cache of builds, keyed by the content of all that went into them; failures too."""

import hashlib
import json
from typing import Any, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs] - it ships none

from gpu_mcp_server.errors import NotFound
from gpu_mcp_server.services.hosts.host_connections import HostProbe
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.store.database import Database

FORMAT = 3
"""Of what is kept; another one is as if there were nothing."""
_msgpack = cast("Any", msgpack)


class BuildCache:
    """Results of builds by key."""

    def __init__(self, db: Database, artifacts: Artifacts) -> None:
        self._db, self._artifacts = db, artifacts

    async def get(self, key: str, *, artifact: str = "artifact_id") -> dict[str, Any] | None:
        """Return what was kept; None where there is nothing, or the content that its `artifact` names is gone."""
        row = await self._db.fetch_one("SELECT value FROM builds WHERE key = ?", (key,))
        value = cast("dict[str, Any]", _msgpack.unpackb(row["value"])) if row is not None else {}
        if value.get("format") != FORMAT:
            return None
        kept = cast("dict[str, Any]", value["result"])
        await self._artifacts.adopt(v for k, v in kept.items() if k.endswith("artifact_id") and isinstance(v, str))
        if kept.get(artifact) is not None:
            try:
                await self._artifacts.path(kept[artifact])
            except NotFound:
                return None
        return kept

    async def put(self, key: str, result: dict[str, Any]) -> None:
        """Keep a result: JSON values alone."""
        value = cast("bytes", _msgpack.packb({"format": FORMAT, "result": result}))
        await self._db.execute(
            "INSERT OR REPLACE INTO builds (key, value, created_at) VALUES (?, ?, datetime('now'))", (key, value)
        )


def key_of(what: str, parts: object, probe: HostProbe) -> str:
    """Return the address of a build: `parts`, and the compilers that the host has.

    `-march=native` makes the processor part of it, and system headers the host.

    Args:
        what: Kind of build; two kinds never share a key.
        parts: All else that decides what comes out; anything that JSON can hold.
        probe: The host's.
    """
    more = probe.toolchains
    versions: dict[str, object] = {n: [c.path, c.version] for n, c in (*probe.compilers.items(), *more.tools.items())}
    versions |= {c.name: [c.path, c.version] for c in more.hip}
    versions["nvcc"] = probe.nvcc.build if probe.nvcc else None
    text = json.dumps(
        [FORMAT, what, parts, versions, probe.machine, probe.cpu, probe.hostname], sort_keys=True, default=dict
    )
    return hashlib.sha256(text.encode()).hexdigest()
