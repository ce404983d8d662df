"""Headers and manual pages of another host, brought here to be read: the version that jobs there compile against."""

import asyncio
import io
import json
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, cast

from gpu_mcp_server.errors import JobBroken
from gpu_mcp_server.hostd.protocol import JobSpec, Limits, ProcessSpec
from gpu_mcp_server.knowledge.index.index_store import Storage
from gpu_mcp_server.knowledge.readers.sources import known_sources
from gpu_mcp_server.package_files import worker_source
from gpu_mcp_server.services.hosts.host_connections import HostProbe, environment_of, min_level, roots_of
from gpu_mcp_server.services.jobs.job_runner import FinishedJob, JobRunner
from gpu_mcp_server.services.jobs.job_table import new_job_id
from gpu_mcp_server.services.jobs.output_text import safe_text
from gpu_mcp_server.settings.server_settings import Settings

FORMATS = ("headers", "classes", "manpages", "lapack")
"""What is read from files alone; Triton's docstrings are asked of the package itself, so only of this machine's."""
PACKED, LISTED = "headers.tar.gz", "headers.json"
WALL_S = 300.0
UNPACKED_BYTES = 256 << 20
DISK_BYTES = 1 << 30
FILE_BYTES = 60 << 20


@dataclass(frozen=True)
class Fetched:
    """Headers fetched from a host."""

    host: str
    places: list[dict[str, str]]
    left_out: list[str]


class HostHeaders:
    """Fetches them by a job like any other."""

    def __init__(self, settings: Settings, jobs: JobRunner) -> None:
        self._settings, self._jobs = settings, jobs

    async def fetch(self, host: str) -> Fetched:
        """Bring a host's headers here, in place of those that came before.

        Raises:
            NotFound: If it is not configured.
            HostUnavailable: If it cannot be reached.
            JobBroken: If nothing came, or not what was asked for.
            DiskFull: If there is no room here.
        """
        where = self._jobs.hosts.choose(host)
        done = await self._jobs.run(self._spec(where, await self._jobs.probe(where)), host=where)
        sent = {o.path: o.sha256 for o in done.record.outputs}
        if done.record.status != "ok" or not {PACKED, LISTED} <= sent.keys():
            raise JobBroken(f"The headers of {where!r} could not be packed: {_said(done)}.", hint="gpu-mcp-server logs")
        packed, listed = [await self._jobs.fetch(where, sent[name]) for name in (PACKED, LISTED)]
        try:
            about = cast("dict[str, Any]", json.loads(listed))
            places = [{key: str(each[key]) for key in ("source", "folder", "root")} for each in about["places"]]
            left_out = [str(path) for path in about["left_out"]]
        except (ValueError, KeyError, TypeError) as error:
            raise JobBroken(f"{where!r} said nothing of its headers that can be read: {error!r}.") from error
        fetched = Fetched(where, places, left_out)
        await asyncio.to_thread(self._keep, fetched, packed)
        return fetched

    def _spec(self, host: str, probe: HostProbe) -> JobSpec:
        sources = [
            {"id": s.id, "roots": s.roots, "files": s.files, "version_file": s.version_file}
            for s in known_sources().values()
            if s.format in FORMATS and s.roots
        ]
        pythons = probe.toolchains.pythons
        asked = {"sources": sources, "sites": [p.site for p in pythons]}
        shown = [r for p in pythons for r in p.roots] + [r for h in probe.toolchains.hip for r in h.roots]
        process = ProcessSpec(
            argv=("{python}", json.dumps(asked)), env=environment_of(probe, {}), program=worker_source("pack_headers")
        )
        return JobSpec(
            id=new_job_id(),
            purpose="documentation",
            processes=(process,),
            outputs=(PACKED, LISTED),
            roots=roots_of(probe, (*self._settings.hosts[host].roots, *shown, "/opt/rocm")),
            limits=Limits(wall_s=WALL_S, disk_bytes=DISK_BYTES, file_bytes=FILE_BYTES),
            min_level=min_level(self._settings),
        )

    def _keep(self, fetched: Fetched, packed: bytes) -> None:
        storage = Storage(self._settings.data_dir)
        with storage.building(), storage.host_folder(fetched.host) as folder:
            _unpack(packed, folder)
            (folder / "places.json").write_text(json.dumps(fetched.places), encoding="utf-8")


def _unpack(packed: bytes, folder: Any) -> None:
    """Write the regular files of an archive that another host made, none outside of `folder`."""
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
            for member in archive:
                path = PurePosixPath(member.name)
                total += member.size
                content = archive.extractfile(member) if member.isreg() else None
                if content is None or path.is_absolute() or ".." in path.parts or total > UNPACKED_BYTES:
                    raise JobBroken(f"The archive of headers holds {member.name[:200]!r}, which is not taken.")
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as file:
                    shutil.copyfileobj(content, file)
    except (tarfile.TarError, EOFError) as error:
        raise JobBroken(f"The archive of headers cannot be read: {error}.") from error


def _said(done: FinishedJob) -> str:
    return done.record.note or safe_text(done.stderr).strip().rpartition("\n")[2][:300] or str(done.record.status)
