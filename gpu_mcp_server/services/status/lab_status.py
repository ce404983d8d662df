"""Status of every host and GPU."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.hostd.protocol import BOXED, LEVELS
from gpu_mcp_server.models.host import Capability, Gpu, HostStatus, LabStatus
from gpu_mcp_server.models.lease import QueueEntry, ReservationInfo
from gpu_mcp_server.runtime.current_user import current_user
from gpu_mcp_server.services.hosts.host_connections import HostProbe, Hosts
from gpu_mcp_server.services.records.trust import BEST
from gpu_mcp_server.services.status.capabilities import Capabilities
from gpu_mcp_server.store.database import Database

PATIENCE_S = 30.0
TRIAL_S = 60.0
"""Once for each driver."""
SOON_S = 0.5
"""So long an answer waits for a trial; it goes on behind the answer."""
SHOWN = 20
LAST_TIMES = 20


class StatusService:
    """The status of the laboratory."""

    def __init__(self, hosts: Hosts, capabilities: Capabilities, db: Database, least: str) -> None:
        """Take what status is read from; `least` is the weakest sandbox level that this server accepts."""
        self._hosts, self._capabilities, self._db, self._least = hosts, capabilities, db, least
        self._trials: dict[str, asyncio.Task[list[Capability]]] = {}

    async def close(self) -> None:
        """End trials that are under way."""
        for trial in self._trials.values():
            trial.cancel()
        await asyncio.gather(*self._trials.values(), return_exceptions=True)

    async def status(self, host: str | None = None) -> LabStatus:
        """Ask all hosts, or one, at the same time; one that does not answer says why instead.

        Raises:
            NotFound: If the host is not configured.
        """
        names = [self._hosts.choose(host)] if host else self._hosts.names()
        hosts = await asyncio.gather(*(self._one(n) for n in names))
        return LabStatus(hosts=[*hosts], note=current_user().expiry_warning(datetime.now(UTC)) or None)

    async def _able(self, name: str, probe: HostProbe) -> list[Capability] | None:
        """Return what the host can do; where there is a driver, try it when it was not tried with this one.

        None while that is being tried.
        """
        known = await self._capabilities.known_capabilities(name)
        if known or not probe.gpus or not probe.driver:
            return known
        trial = self._trials.get(name)
        if trial is None or trial.done():
            trial = self._trials[name] = asyncio.create_task(self._tried(name), name=f"capabilities of {name}")
        await asyncio.wait({trial}, timeout=SOON_S)
        return trial.result() if trial.done() else None

    async def _tried(self, name: str) -> list[Capability]:
        try:
            async with asyncio.timeout(TRIAL_S):
                return await self._capabilities.try_all(name)
        except (GpuMcpError, TimeoutError):
            return []

    async def _times(self, name: str, probe: HostProbe) -> str:
        """Say how well times that are taken on a host can be confirmed, by those that were."""
        if probe.why_untimed():
            return f"never: {probe.why_untimed()}"
        sure, count = await count_confirmed(self._db, name, LAST_TIMES)
        return f"{sure} of the last {count} could be confirmed" if count else "unknown: none was taken here yet"

    async def _one(self, name: str) -> HostStatus:
        kind = self._hosts.kind(name)
        try:
            async with asyncio.timeout(PATIENCE_S):
                probe = await self._hosts.probe(name)
                now, _ = await self._hosts.call(name, "gpus")
        except GpuMcpError as error:
            return HostStatus(host=name, kind=kind, reachable=False, problem=str(error))
        except TimeoutError:
            return HostStatus(host=name, kind=kind, reachable=False, problem=f"no answer within {PATIENCE_S:g} s")
        able = await self._able(name, probe)
        fields = set(Gpu.model_fields) - {"foreign_processes"}
        gpus = [Gpu(**{k: v for k, v in g.items() if k in fields}, foreign_processes=g["foreign"]) for g in now["gpus"]]
        gpus += [Gpu(**{k: v for k, v in g.items() if k in fields}, shown_only=True) for g in now.get("amd", ())]
        return HostStatus(
            host=name,
            kind=kind,
            reachable=True,
            problem=missing_pieces(name, probe, now["left_out"], now["locks"]["fault"], self._least),
            locks_note=now["locks"]["note"] or None,
            level=probe.level,
            weaker_because=probe.weaker_because or None,
            fix_hint=probe.hint or None,
            cpu=probe.cpu,
            cores=probe.cores,
            memory_bytes=probe.memory_bytes,
            memory_available_bytes=now.get("memory_available_bytes"),
            load=now.get("load"),
            driver=probe.driver,
            toolchains=toolchain_versions(probe),
            judge=_judge(probe),
            times=await self._times(name, probe),
            devices=probe.devices(),
            gpus=gpus,
            why_no_gpu=(probe.why_no_gpu or None) if not gpus else None,
            capabilities=able or [],
            trying=able is None,
            waiting=[_waiting(w) for w in now["pool"]["broker"].get("waiting", [])[:SHOWN]],
            reservations=[ReservationInfo(**r) for r in now["pool"]["reservations"]],
            jobs_running=now["jobs_running"],
            drained=now["drained"] or None,
            job_uids=now.get("job_uids"),
        )


async def count_confirmed(db: Database, host: str, last: int) -> tuple[int, int]:
    """Return how many of the last times that were taken on a host are confirmed, and how many those are."""
    rows = await db.fetch_all(
        f"SELECT evidence ->> 'unconfirmable' IS NULL AS sure FROM attempts WHERE {BEST} AND host = ? "  # noqa: S608
        "ORDER BY seq DESC LIMIT ?",
        (host, last),
    )
    return sum(row["sure"] for row in rows), len(rows)


def _waiting(said: Mapping[str, Any]) -> QueueEntry:
    return QueueEntry(
        position=said["position"],
        job=said["job"],
        user=said["user"] or f"uid {said['uid']}",
        mode=said["mode"],
        gpus=said["count"],
        waited_s=said["seconds"],
        expected_s=said["wait_s"],
        why=said["why"],
    )


def toolchain_versions(probe: HostProbe) -> dict[str, str]:
    """Return compilers and their versions."""
    found = {name: c.version for name, c in probe.compilers.items()}
    if probe.nvcc:
        found["nvcc"] = probe.nvcc.version
    more = probe.toolchains
    if more.nvrtc:
        found["nvrtc"] = more.nvrtc.version
    if more.hiprtc:
        found["hiprtc"] = more.hiprtc.version
    found.update({c.name: c.version for c in more.hip})
    triton = next((p.triton for p in more.pythons if p.triton), None)
    if triton:
        found["triton"] = triton
    sycl = next((p.sycl for p in more.pythons if p.sycl), None)
    if sycl:
        found["sycl at run time"] = sycl
    found.update({name: tool.version for name, tool in more.tools.items() if name not in ("ctest", "make")})
    return found


def _judge(probe: HostProbe) -> str | None:
    if probe.judge is None:
        return None
    parts = [f"Python {probe.judge.version}"]
    parts += [f"{n} {v}" for n, v in (("NumPy", probe.judge.numpy), ("torch", probe.judge.torch)) if v]
    why = f" ({probe.judge.why})" if probe.judge.why else ""
    return f"{', '.join(parts)} at {probe.judge.path}{why}"


def missing_pieces(
    name: str, probe: HostProbe, left_out: Sequence[str] = (), locks: str = "", least: str = BOXED[0]
) -> str | None:
    """Return what a host lacks, each with what to do about it.

    Args:
        name: The host's name in the settings.
        probe: What it has.
        left_out: GPUs that cannot be used, each with the reason.
        locks: Why nobody may lock its GPUs.
        least: The weakest sandbox level that the server accepts.
    """
    troubles: list[str] = [f"no job gets its GPUs: {locks}"] if locks else []
    if probe.level not in BOXED:
        troubles.append(f"sandbox is only {probe.level}. {probe.hint}")
    elif LEVELS.index(probe.level) < LEVELS.index(least):
        troubles.append(f"no job runs here: this server's min_level is {least}, the sandbox {probe.level}")
    if probe.noexec:
        troubles.append(f"{probe.state} is mounted noexec: programs built there cannot run; set state_dir of this host")
    if not probe.judge or not probe.judge.numpy:
        troubles.append(f"the judge finds no Python with NumPy; `hosts set {name} --with numpy` installs it")
    if not probe.compilers:
        troubles.append("no C compiler; apt-get install gcc g++")
    if probe.cuda_without_nvcc:
        used = f"that of {probe.nvcc.root} is used" if probe.nvcc else "none was found elsewhere"
        troubles.append(f"no nvcc in {probe.cuda_without_nvcc}/bin, {used}; correct `cuda` of this host")
    elif probe.gpus and not probe.nvcc:
        troubles.append("GPUs but no CUDA toolkit: no nvcc is found; install it, or set `cuda` of this host")
    if left_out:
        troubles.append(f"{'; '.join(left_out)}; `nvidia-smi` (`amd-smi`) must show it there")
    elif probe.why_no_gpu and not probe.why_no_gpu.startswith("no NVIDIA driver"):
        troubles.append(f"its GPUs cannot be asked: {probe.why_no_gpu}; `nvidia-smi` must work there")
    return "; ".join(troubles) or None
