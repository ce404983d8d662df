"""Verifies programs that use NCCL's device interface, by somebody else than the program, each check with evidence."""

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import get_args

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.nccl_check import NcclCheck, NcclRunOptions, NcclVerification, Verdict
from gpu_mcp_server.nccl.checks import rules
from gpu_mcp_server.nccl.checks.findings import Rule
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from gpu_mcp_server.services.builds.candidate_source import texts_of
from gpu_mcp_server.services.commands.background_work import BackgroundWork, StillRunning
from gpu_mcp_server.services.commands.command_runner import Progress
from gpu_mcp_server.services.jobs.job_runner import JobRunner
from gpu_mcp_server.services.nccl.gpu_checks import NcclGpuChecks
from gpu_mcp_server.services.nccl.host_support import (
    ENOUGH_GPUS,
    NcclHost,
    NcclHosts,
    require_install,
    supported_stages,
)
from gpu_mcp_server.services.nccl.rank_jobs import NcclJobs, ProgramLaunch
from gpu_mcp_server.services.nccl.trial_programs import OriginalRun, VerifiedProgram, builds
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.services.workspaces.workspace_store import Workspaces
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.store.artifacts import Artifacts

STATIC = get_args(Rule)
ON_HOST = ("versions", "build")
ON_GPUS = ("run", "counters", "differential", "stress", "negative control", "memcheck", "timing")
LATER = "the last stage runs this check"
TOLD_CHARACTERS = 160
STEPS = {"static": 0, "build": 1, "run": 2, "all": 3}
Texts = Mapping[str, str]


class NcclVerifier:
    """Programs in, verdicts out."""

    def __init__(
        self,
        hosts: NcclHosts,
        jobs: NcclJobs,
        workspaces: Workspaces,
        artifacts: Artifacts,
        experience: AttemptStore,
    ) -> None:
        self.hosts, self.jobs = hosts, jobs
        self._workspaces, self._artifacts, self._experience = workspaces, artifacts, experience
        self._ongoing: BackgroundWork[NcclVerification] = BackgroundWork()

    @classmethod
    def from_services(
        cls,
        settings: Settings,
        jobs: JobRunner,
        workspaces: Workspaces,
        artifacts: Artifacts,
        experience: AttemptStore,
    ) -> "NcclVerifier":
        """Make it with what it needs."""
        hosts = NcclHosts(settings, jobs)
        return cls(hosts, NcclJobs(settings, jobs, hosts), workspaces, artifacts, experience)

    async def verify_workspace(
        self,
        workspace_id: str,
        path: str,
        original: str | None = None,
        before: str | None = None,
        options: NcclRunOptions | None = None,
        *,
        progress: Progress | None = None,
    ) -> NcclVerification:
        """Verify a program of a workspace, or wait on for a verification that goes on.

        Args:
            workspace_id: Where its files lie.
            path: Its main file.
            original: Main file of the program with host collectives, in the same workspace.
            before: Workspace with the files of the stage's input, whose frozen text must stand unchanged.
            options: How to start it and how far to check.
            progress: Told what happens meanwhile.

        Raises:
            NotFound: If a workspace or file is not there.
            BadRequest: If a file is no CUDA C++.
        """
        files = await texts_of(self._workspaces, workspace_id)
        for name in (path, *((original,) if original else ())):
            await self._workspaces.read_bytes(workspace_id, name)
        earlier = await texts_of(self._workspaces, before) if before else None
        options = options or NcclRunOptions()
        asked = [workspace_id, path, original, before, options.model_dump(exclude={"wait_s"}), files, earlier]

        def work(tell: Progress) -> Awaitable[NcclVerification]:
            return self.verify(files, path, original=original, before=earlier, options=options, progress=tell)

        key = hashlib.sha256(json.dumps(asked).encode("utf-8", "surrogateescape")).hexdigest()
        said = await self._ongoing.start_or_join(key, work, wait_s=options.wait_s, progress=progress)
        if isinstance(said, StillRunning):
            text = f"{said.last or 'at its start'}; the same call again keeps waiting"
            return NcclVerification(verdict="running", possible=text, checks=[])
        return said

    async def close(self) -> None:
        """End verifications that go on without a caller."""
        await self._ongoing.close()

    async def verify(
        self,
        files: Texts,
        main: str,
        *,
        original: str | None = None,
        before: Texts | None = None,
        options: NcclRunOptions | None = None,
        original_run: OriginalRun | None = None,
        interim: bool = False,
        progress: Progress | None = None,
    ) -> NcclVerification:
        """Verify a program; arguments as for `verify_workspace`, with texts instead of workspaces.

        Args:
            files: Text by path.
            main: Its main file.
            original: Main file of the program with host collectives.
            before: The stage's input.
            options: How to start it and how far to check.
            original_run: The original's run, when another stage of the program may share it.
            interim: Another stage follows, which gets the negative control and memcheck.
            progress: Told what happens meanwhile.
        """
        options, began = options or NcclRunOptions(), time.monotonic()
        program = read_program(files, main)
        source = ProgramModel.read(files, original) if original else None
        host = await self.hosts.describe_host(options.host)
        attempt_id = await self._experience.start(
            "nccl",
            host=host.host,
            language="cuda",
            level=host.probe.level,
            driver=host.probe.driver,
            device=f"{host.gpus} GPUs",
            note=f"verify {main}",
        )
        launch = ProgramLaunch(tuple(options.arguments), options.ranks, options.launcher, options.timeout_s)
        subject = VerifiedProgram(program, source, launch, original_run or OriginalRun(), interim)
        try:
            checks = self._static(program, source, before, host)
            checks += await self._rest(
                subject, host, options, progress, failed=any(c.status == "failed" for c in checks)
            )
        except BaseException as error:
            reason = f"broken off: {type(error).__name__}"
            await self._experience.finish(attempt_id, status="broken", reason=reason)
            raise
        return await self._finished(attempt_id, checks, subject, host, time.monotonic() - began)

    def _static(
        self, program: ProgramModel, original: ProgramModel | None, before: Texts | None, host: NcclHost
    ) -> list[NcclCheck]:
        header = host.install.version if host.install is not None else None
        frozen = (
            {p: t for p, t in before.items() if p in program.sources or p.endswith((".cu", ".cuh", ".h"))}
            if before
            else None
        )
        found = rules.findings(program, original=original, before=frozen, header=header)
        return rules.checks(program, found, compared=original is not None, frozen=before is not None)

    async def _rest(
        self,
        subject: VerifiedProgram,
        host: NcclHost,
        options: NcclRunOptions,
        progress: Progress | None,
        *,
        failed: bool,
    ) -> list[NcclCheck]:
        """Go on from the static rules as far as wanted, possible and useful; what does not run says why."""
        step = STEPS[options.until]
        if step < STEPS["build"]:
            return _skipped((*ON_HOST, *ON_GPUS), "only static rules were asked for")
        versions = self._versions(host)
        if host.install is None:
            return [versions, *_skipped(("build", *ON_GPUS), "there is no NCCL to build with")]
        if progress is not None:
            await progress("building")
        build = await self._build(subject, host, everything=step > STEPS["run"] and host.gpus >= ENOUGH_GPUS)
        done = [versions, build]
        if step < STEPS["run"]:
            return [*done, *_skipped(ON_GPUS, "runs were not asked for")]
        if build.status == "failed" or versions.status == "failed":
            return [*done, *_skipped(ON_GPUS, "it would not run rightly: see versions and build")]
        if host.gpus < max(ENOUGH_GPUS, options.ranks):
            why = f"{options.ranks} GPUs are needed, {host.host!r} has {host.gpus}"
            return [*done, *_skipped(ON_GPUS, why)]
        if failed:
            return [*done, *_skipped(ON_GPUS, "static rules failed: a run could hang, and a PASS would prove nothing")]
        return [*done, *await self._trials(subject, host, progress, everything=step > STEPS["run"])]

    def _versions(self, host: NcclHost) -> NcclCheck:
        install = host.install
        if install is None:
            return NcclCheck(
                name="versions", status="skipped", evidence="there is no nccl.h with its library on this host"
            )
        said = f"header {install.header}, library {install.runtime or 'that cannot be loaded'}, {install.folder}"
        if not install.agrees:
            text = f"{said}: the versions differ, so device code would read wrong addresses silently"
            return NcclCheck(name="versions", status="failed", evidence=text)
        return NcclCheck(name="versions", status="passed", evidence=said)

    async def _build(self, subject: VerifiedProgram, host: NcclHost, *, everything: bool) -> NcclCheck:
        """Build the program, and, where it can be run, what the trials need."""
        require_install(host)
        wanted = builds(subject)
        chosen = wanted if everything else {"plain": wanted["plain"]}
        made = await self.jobs.build(host, list(chosen.values()))
        subject.built = dict(zip(chosen, made, strict=True))
        if subject.original_run.built is not None:
            subject.built["original"] = subject.original_run.built
        subject.original_run.built = subject.built.get("original")
        subject.log += [f"=== build {name}\n{b.log[-8000:]}" for name, b in subject.built.items()]
        plain = subject.built["plain"]
        if plain.binary is None:
            return NcclCheck(name="build", status="failed", evidence=f"{plain.status}: {plain.first}"[:600])
        spills = [line for line in plain.log.splitlines() if "spill" in line and " 0 bytes spill stores" not in line]
        text = f"{len(plain.binary)} bytes in {plain.seconds or 0:.1f} s"
        text += f"; {len(spills)} functions spill registers" if spills else "; no spills"
        others = [f"{n} does not build: {b.first}" for n, b in subject.built.items() if b.binary is None]
        return NcclCheck(
            name="build", status="noted" if others else "passed", evidence="; ".join([text, *others])[:900]
        )

    async def _trials(
        self, subject: VerifiedProgram, host: NcclHost, progress: Progress | None, *, everything: bool
    ) -> list[NcclCheck]:
        trials = NcclGpuChecks(self.jobs, host, subject, progress)
        done = await _side_by_side([trials.plain], progress)
        if any(c.status == "failed" and c.name == "run" for c in done):
            return [*done, *_skipped(_after(done), "the plain run failed")]
        if not everything:
            return [*done, *_skipped(_after(done), "only a plain run was asked for")]
        if subject.interim:
            parts = [trials.differential, trials.stress]
            done += [NcclCheck(name=n, status="noted", evidence=LATER) for n in ("negative control", "memcheck")]
        else:
            parts = [trials.differential, trials.stress, trials.negative]
        done += await _side_by_side(parts, progress)
        if not _fails(done):
            done += await _side_by_side([trials.timing], progress)
        if not subject.interim:  # last, as no other trial takes as long
            done += await _side_by_side([trials.memcheck], progress)
        if _fails([c for c in done if c.name != "timing"]):
            subject.timings = []
            done = [c for c in done if c.name != "timing"]
            done += _skipped(("timing",), "a wrong program's time means nothing")
        return sorted(done, key=lambda c: ON_GPUS.index(c.name))

    async def _finished(
        self, attempt_id: str, checks: list[NcclCheck], subject: VerifiedProgram, host: NcclHost, seconds: float
    ) -> NcclVerification:
        failed = [c for c in checks if c.status == "failed"]
        missing = [c.name for c in checks if c.status == "skipped" and c.name != "frozen text"]
        verdict: Verdict = "failed" if failed else "incomplete" if missing else "verified"
        log = "\n".join(subject.log).encode()
        kept = await self._artifacts.put(log, name="nccl.log", media_type="text/plain") if log else None
        reason = f"{failed[0].name}: {failed[0].evidence}" if failed else ", ".join(f"{m} not run" for m in missing)
        await self._experience.finish(
            attempt_id,
            status="failed" if failed else "ok" if verdict == "verified" else "judged",
            verdict=verdict,
            reason=reason[:1000] or None,
            evidence={"checks": [c.model_dump() for c in checks], "log_artifact": kept},
        )
        install = host.install
        return NcclVerification(
            verdict=verdict,
            possible=supported_stages(host),
            checks=checks,
            timings=subject.timings,
            missing=missing,
            nccl=f"header {install.header}, library {install.runtime}" if install else None,
            host=host.host,
            level=host.probe.level,
            attempt_id=attempt_id,
            seconds=seconds,
            log_artifact_id=kept,
        )


def read_program(files: Texts, main: str) -> ProgramModel:
    """Parse the program of a main file.

    Raises:
        BadRequest: If the file is not there or is no C++ or CUDA source.
    """
    if main not in files:
        raise BadRequest(
            f"There is no text file {main!r}.", hint=f"There are {', '.join(sorted(files)[:10]) or 'none'}."
        )
    if not main.endswith((".cu", ".cpp", ".cc", ".cxx", ".cuh")):
        raise BadRequest(f"{main!r} is no CUDA or C++ source.", hint="Give the main file, such as all_reduce.cu.")
    return ProgramModel.read(files, main)


def _skipped(names: tuple[str, ...], why: str) -> list[NcclCheck]:
    return [NcclCheck(name=name, status="skipped", evidence=why) for name in names]


async def _side_by_side(
    parts: Sequence[Callable[[], Awaitable[list[NcclCheck]]]], progress: Progress | None
) -> list[NcclCheck]:
    """Do parts at once, as far as the host has GPUs, and tell each result as soon as it is known."""

    async def do_part(part: Callable[[], Awaitable[list[NcclCheck]]]) -> list[NcclCheck]:
        found = await part()
        if progress is not None:
            for check in found:
                evidence = " ".join(check.evidence.split())[:TOLD_CHARACTERS]
                await progress(f"check {check.name}: {check.status}, {evidence}")
        return found

    tasks = [asyncio.create_task(do_part(part)) for part in parts]
    try:
        return [check for found in await asyncio.gather(*tasks) for check in found]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _fails(done: Sequence[NcclCheck]) -> bool:
    return any(c.status == "failed" for c in done)


def _after(done: list[NcclCheck]) -> tuple[str, ...]:
    return tuple(n for n in ON_GPUS if n not in {c.name for c in done})
