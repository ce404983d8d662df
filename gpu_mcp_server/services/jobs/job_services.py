"""The services of jobs: how they run, where, and what they are called."""

from dataclasses import dataclass

from gpu_mcp_server.services.hosts.host_connections import Hosts
from gpu_mcp_server.services.jobs.batch_jobs import Long
from gpu_mcp_server.services.jobs.gpu_scheduler import Pool
from gpu_mcp_server.services.jobs.job_runner import JobRunner
from gpu_mcp_server.services.jobs.job_table import JobTable
from gpu_mcp_server.services.jobs.task_table import Tasks
from gpu_mcp_server.services.workspaces.workspace_store import Workspaces
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.store.database import Database
from gpu_mcp_server.team.quotas import Allowances


@dataclass(frozen=True)
class JobServices:
    """Runs jobs on hosts, chooses the hosts, and keeps what was started."""

    runner: JobRunner
    table: JobTable
    pool: Pool
    long: Long
    tasks: Tasks

    @classmethod
    def create(
        cls, settings: Settings, hosts: Hosts, db: Database, workspaces: Workspaces, artifacts: Artifacts
    ) -> "JobServices":
        """Return them with the pool, the quotas and the batch systems that the runner asks."""
        table = JobTable(db)
        runner = JobRunner(hosts, table)
        pool = Pool(settings, runner, table)
        long = Long(settings, hosts, table, workspaces, artifacts)
        runner.gatekeeper, runner.long = Allowances(db), long
        return cls(runner, table, pool, long, Tasks(db, pool.owner))
