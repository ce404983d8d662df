"""The laboratory: all services, opened together and closed together."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gpu_mcp_server.services.builds.build_services import BuildServices
from gpu_mcp_server.services.commands.command_runner import CommandRunner
from gpu_mcp_server.services.documentation.doc_search import Documents
from gpu_mcp_server.services.evaluation.evaluation_services import EvaluationServices
from gpu_mcp_server.services.experience.experience_search import ExperienceSearch
from gpu_mcp_server.services.experience.store_merge import Merging
from gpu_mcp_server.services.hosts.host_connections import Hosts
from gpu_mcp_server.services.jobs.job_services import JobServices
from gpu_mcp_server.services.nccl.nccl_services import NcclServices
from gpu_mcp_server.services.problems.problem_joining import join_renamed_problems
from gpu_mcp_server.services.profiles.profile_services import ProfileServices
from gpu_mcp_server.services.programs.program_services import ProgramServices
from gpu_mcp_server.services.status.status_services import StatusServices
from gpu_mcp_server.services.store import Store
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.store.database import CHECKED_BYTES, DATABASE, Database
from gpu_mcp_server.store.store_locks import USE, hold_lock


@dataclass(frozen=True)
class Lab:
    """All services that tools may use, room by room."""

    settings: Settings
    store: Store
    hosts: Hosts
    jobs: JobServices
    documents: Documents
    commands: CommandRunner
    builds: BuildServices
    profiles: ProfileServices
    programs: ProgramServices
    evaluation: EvaluationServices
    nccl: NcclServices
    status: StatusServices
    memory: ExperienceSearch
    merging: Merging

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings) -> "AsyncGenerator[Lab]":
        """Open the store; hosts are reached when they are first needed.

        Raises:
            ConfigError, DiskFull: If the data folder cannot be used.
        """
        async with _database(settings.data_dir) as db:
            store = Store.create(settings.data_dir, db)
            await store.artifacts.clean()
            await join_renamed_problems(db)
            lab = cls._over(store, settings)
            async with lab._tidied():
                yield lab

    @classmethod
    def _over(cls, store: Store, settings: Settings) -> "Lab":
        """Put the rooms together, each over those below it."""
        hosts, documents = Hosts(settings), Documents(settings)
        workspaces, artifacts, experience = store.workspaces, store.artifacts, store.experience
        jobs = JobServices.create(settings, hosts, store.db, workspaces, artifacts)
        runner, table, pool = jobs.runner, jobs.table, jobs.pool
        commands = CommandRunner(settings, runner, table, workspaces, artifacts, experience, pool, documents)
        builds = BuildServices.create(settings, runner, store, documents)
        profiles = ProfileServices.create(settings, jobs, store, builds.compiler)
        evaluation = EvaluationServices.create(settings, jobs, store, builds, profiles.checker)
        programs = ProgramServices.create(store, builds, profiles, evaluation)
        commands.settlers |= {
            "judge": evaluation.verdicts.finish_and_describe,
            "check": profiles.checker.finish_and_describe,
            "profile": profiles.profiler.finish_and_describe,
            **programs.settlers(),
        }
        return cls(
            settings, store, hosts, jobs, documents, commands, builds, profiles, programs, evaluation,
            NcclServices.create(settings, runner, store, documents),
            StatusServices.create(settings, hosts, jobs, store),
            ExperienceSearch(store.db),
            Merging(store.db, artifacts),
        )  # fmt: skip

    @asynccontextmanager
    async def _tidied(self) -> AsyncGenerator[None]:
        """Finish meanwhile what an earlier server left; close all links at the end."""
        tidying = asyncio.create_task(self.commands.finish_leftovers(), name="tidy")
        self.evaluation.runs.start()
        try:
            yield
        finally:
            tidying.cancel()
            await asyncio.gather(tidying, return_exceptions=True)
            await self.status.gpus.close()
            await self.nccl.verifier.close()
            await self.evaluation.runs.close()
            await self.evaluation.baselines.close()
            await self.documents.close()
            await self.jobs.pool.close()
            await self.hosts.close()


@asynccontextmanager
async def _database(folder: Path) -> AsyncGenerator[Database]:
    with hold_lock(folder, USE):
        async with await Database.open(folder / DATABASE, check_up_to_bytes=CHECKED_BYTES) as db:
            yield db
