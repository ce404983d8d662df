"""The services that show how things stand."""

from dataclasses import dataclass

from gpu_mcp_server.services.hosts.host_connections import Hosts, min_level
from gpu_mcp_server.services.jobs.job_services import JobServices
from gpu_mcp_server.services.status.capabilities import Capabilities
from gpu_mcp_server.services.status.dashboard_queries import DashboardQueries
from gpu_mcp_server.services.status.lab_status import StatusService
from gpu_mcp_server.services.status.listings import Listings
from gpu_mcp_server.services.store import Store
from gpu_mcp_server.settings.server_settings import Settings


@dataclass(frozen=True)
class StatusServices:
    """Shows hosts with their GPUs, what they are capable of, and the store at a glance."""

    gpus: StatusService
    capabilities: Capabilities
    overview: DashboardQueries
    lists: Listings

    @classmethod
    def create(cls, settings: Settings, hosts: Hosts, jobs: JobServices, store: Store) -> "StatusServices":
        """Return them over the same hosts, jobs and store."""
        capabilities = Capabilities(settings, jobs.runner, store.db)
        overview = DashboardQueries(store.db, jobs.table, jobs.runner, store.experience)
        return cls(
            StatusService(hosts, capabilities, store.db, min_level(settings)),
            capabilities,
            overview,
            Listings(store.db, overview),
        )
