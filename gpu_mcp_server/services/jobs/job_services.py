"""The services of jobs: how they run, where, and what they are called."""

from dataclasses import dataclass

from gpu_mcp_server.services.hosts.host_connections import Hosts
from gpu_mcp_server.services.jobs.batch_jobs import BatchJobs
from gpu_mcp_server.services.jobs.gpu_scheduler import GpuScheduler
from gpu_mcp_server.services.jobs.job_runner import JobRunner
from gpu_mcp_server.services.jobs.job_table import JobTable
from gpu_mcp_server.services.jobs.keyed_calls import KeyedCallTable
from gpu_mcp_server.services.jobs.task_table import TaskTable
from gpu_mcp_server.services.workspaces.workspace_store import Workspaces
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.store.database import Database
from gpu_mcp_server.team.quotas import QuotaService


@dataclass(frozen=True)
class JobServices:
    """Runs jobs on hosts, chooses the hosts, and keeps what was started."""

    runner: JobRunner
    table: JobTable
    pool: GpuScheduler
    long: BatchJobs
    tasks: TaskTable
    keyed: KeyedCallTable

    @classmethod
    def create(
        cls, settings: Settings, hosts: Hosts, db: Database, workspaces: Workspaces, artifacts: Artifacts
    ) -> "JobServices":
        """Return them with the pool, the quotas and the batch systems that the runner asks."""
        table = JobTable(db)
        runner = JobRunner(hosts, table)
        pool = GpuScheduler(settings, runner, table)
        long = BatchJobs(settings, hosts, table, workspaces, artifacts)
        runner.gatekeeper, runner.long = QuotaService(db), long
        return cls(runner, table, pool, long, TaskTable(db, pool.owner), KeyedCallTable(db))
