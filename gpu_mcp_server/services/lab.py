"""The laboratory: all services, opened together and closed together."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gpu_mcp_server.services.builds.build_cache import BuildCache
from gpu_mcp_server.services.builds.compiler import Compiler
from gpu_mcp_server.services.builds.disassembly import Inspector
from gpu_mcp_server.services.builds.porting import Porter
from gpu_mcp_server.services.builds.program_builds import ProgramBuilder
from gpu_mcp_server.services.builds.project_builds import Projects
from gpu_mcp_server.services.commands.command_runner import Runner, Settle
from gpu_mcp_server.services.documentation.doc_search import Documents
from gpu_mcp_server.services.evaluation.attempt_audit import Auditor
from gpu_mcp_server.services.evaluation.baselines import Baselines
from gpu_mcp_server.services.evaluation.candidate_batches import Batches
from gpu_mcp_server.services.evaluation.evaluator import Evaluator
from gpu_mcp_server.services.evaluation.judge_results import Verdicts
from gpu_mcp_server.services.evaluation.problem_registry import Registry
from gpu_mcp_server.services.evaluation.program_candidates import Programs
from gpu_mcp_server.services.evaluation.verdict_cache import KeptVerdicts
from gpu_mcp_server.services.experience.experience_search import Memory
from gpu_mcp_server.services.experience.store_merge import Merging
from gpu_mcp_server.services.hosts.host_connections import Hosts
from gpu_mcp_server.services.jobs.batch_jobs import Long
from gpu_mcp_server.services.jobs.gpu_scheduler import Pool
from gpu_mcp_server.services.jobs.job_runner import JobRunner
from gpu_mcp_server.services.jobs.job_table import JobTable
from gpu_mcp_server.services.jobs.task_table import Tasks
from gpu_mcp_server.services.nccl.transform import Collectives
from gpu_mcp_server.services.nccl.verifier import NcclVerifier
from gpu_mcp_server.services.problems.problem_table import Problems
from gpu_mcp_server.services.profiles.memory_checker import Checker
from gpu_mcp_server.services.profiles.profile_queries import Profiles
from gpu_mcp_server.services.profiles.profile_targets import Targets
from gpu_mcp_server.services.profiles.profiler import Profiler
from gpu_mcp_server.services.profiles.tool_jobs import ToolJobs
from gpu_mcp_server.services.records.attempts import Experience
from gpu_mcp_server.services.status.capabilities import Capabilities
from gpu_mcp_server.services.status.dashboard_queries import Overview
from gpu_mcp_server.services.status.lab_status import Gpus
from gpu_mcp_server.services.workspaces.workspace_store import Workspaces
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.store.database import CHECKED_BYTES, DATABASE, Database
from gpu_mcp_server.store.events import Events
from gpu_mcp_server.store.store_locks import USE, held
from gpu_mcp_server.team.quotas import Allowances
from gpu_mcp_server.team.sharing import Sharing


@dataclass(frozen=True)
class Lab:
    """What tools may ask for."""

    settings: Settings
    hosts: Hosts
    jobs: JobRunner
    workspaces: Workspaces
    problems: Problems
    experience: Experience
    artifacts: Artifacts
    compiler: Compiler
    runner: Runner
    registry: Registry
    evaluator: Evaluator
    baselines: Baselines
    auditor: Auditor
    batches: Batches
    gpus: Gpus
    capabilities: Capabilities
    checker: Checker
    profiler: Profiler
    profiles: Profiles
    pool: Pool
    inspector: Inspector
    projects: Projects
    porter: Porter
    nccl_verifier: NcclVerifier
    documents: Documents
    collectives: Collectives
    memory: Memory
    tasks: Tasks
    events: Events
    programs: Programs
    overview: Overview
    sharing: Sharing
    merging: Merging

    @property
    def long(self) -> Long:
        """Long jobs of batch systems."""
        assert self.jobs.long is not None
        return self.jobs.long

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings) -> "AsyncGenerator[Lab]":
        """Open the store; hosts are reached when they are first needed.

        Raises:
            ConfigError, DiskFull: If the data folder cannot be used.
        """
        async with _store(settings.data_dir) as db:
            artifacts = Artifacts(settings.data_dir / "artifacts", db)
            await artifacts.clean()
            hosts, table, documents = Hosts(settings), JobTable(db), Documents(settings)
            jobs = JobRunner(hosts, table)
            pool = Pool(settings, jobs, table)
            jobs.gatekeeper = Allowances(db)
            workspaces, problems, experience = Workspaces(db, artifacts), Problems(db), Experience(db)
            jobs.long = Long(settings, hosts, table, workspaces, artifacts)
            compiler = Compiler(settings, jobs, db, artifacts, experience, documents)
            runner = Runner(settings, jobs, table, workspaces, artifacts, experience, pool, documents)
            kept = KeptVerdicts(BuildCache(db, artifacts), experience)
            verdicts = Verdicts(jobs, problems, experience, artifacts, kept)
            programs = Programs(settings, jobs, ProgramBuilder(settings, jobs, db, artifacts))
            registry = Registry(settings, jobs, problems, experience, verdicts, programs, compiler, artifacts)
            baselines = Baselines(settings, jobs, db, compiler, artifacts, verdicts)
            tools = ToolJobs(settings, jobs, table, artifacts, experience)
            targets = Targets(jobs, workspaces, artifacts, experience, problems, compiler)
            checker, profiler = Checker(tools, targets), Profiler(tools, targets)
            evaluator = Evaluator(
                settings, jobs, table, compiler, problems, experience, artifacts, verdicts, programs, pool,
                baselines, checker, kept,
            )  # fmt: skip
            capabilities = Capabilities(settings, jobs, db)
            runner.settlers |= _settlers(verdicts, checker, profiler)
            verifier = NcclVerifier.opened(settings, jobs, workspaces, artifacts, experience)
            async with _tidied(runner, hosts, verifier, baselines, documents, pool):
                yield cls(
                    settings, hosts, jobs, workspaces, problems, experience, artifacts, compiler, runner, registry,
                    evaluator, baselines,
                    Auditor(evaluator, experience, artifacts),
                    Batches(jobs, problems, evaluator),
                    Gpus(hosts, capabilities),
                    capabilities,
                    checker,
                    profiler,
                    Profiles(experience, artifacts),
                    pool,
                    Inspector(settings, jobs, db, artifacts, experience),
                    Projects(settings, jobs, workspaces, artifacts, BuildCache(db, artifacts)),
                    Porter(settings, jobs, workspaces, compiler),
                    verifier, documents,
                    Collectives(workspaces, documents), Memory(db),
                    Tasks(db, pool.owner), Events(db), programs,
                    Overview(db, table, jobs, experience),
                    Sharing(db), Merging(db, artifacts),
                )  # fmt: skip


@asynccontextmanager
async def _store(folder: Path) -> AsyncGenerator[Database]:
    with held(folder, USE):
        async with await Database.open(folder / DATABASE, check_up_to_bytes=CHECKED_BYTES) as db:
            yield db


def _settlers(verdicts: Verdicts, checker: Checker, profiler: Profiler) -> dict[str, Settle]:
    return {"judge": verdicts.settle_line, "check": checker.settle_line, "profile": profiler.settle_line}


@asynccontextmanager
async def _tidied(
    runner: Runner, hosts: Hosts, verifier: NcclVerifier, baselines: Baselines, documents: Documents, pool: Pool
) -> AsyncGenerator[None]:
    """Finish meanwhile what an earlier server left; close all links at the end."""
    tidying = asyncio.create_task(runner.tidy(), name="tidy")
    try:
        yield
    finally:
        tidying.cancel()
        await asyncio.gather(tidying, return_exceptions=True)
        await verifier.close()
        await baselines.close()
        await documents.close()
        await pool.close()
        await hosts.close()
