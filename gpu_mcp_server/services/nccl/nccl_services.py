"""The services of NCCL programs."""

from dataclasses import dataclass

from gpu_mcp_server.services.documentation.doc_search import Documents
from gpu_mcp_server.services.jobs.job_runner import JobRunner
from gpu_mcp_server.services.nccl.program_times import ProgramTimes
from gpu_mcp_server.services.nccl.transform import Collectives
from gpu_mcp_server.services.nccl.verifier import NcclVerifier
from gpu_mcp_server.services.store import Store
from gpu_mcp_server.settings.server_settings import Settings


@dataclass(frozen=True)
class NcclServices:
    """Takes programs to NCCL's device interface, and verifies them."""

    collectives: Collectives
    verifier: NcclVerifier
    times: ProgramTimes

    @classmethod
    def create(cls, settings: Settings, jobs: JobRunner, store: Store, documents: Documents) -> "NcclServices":
        """Return them over the same jobs and store."""
        verifier = NcclVerifier.from_services(settings, jobs, store.workspaces, store.artifacts, store.experience)
        return cls(Collectives(store.workspaces, documents), verifier, ProgramTimes(verifier.jobs, verifier.hosts))
