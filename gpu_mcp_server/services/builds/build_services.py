"""The services of builds: sources and projects in, binaries and listings out."""

from dataclasses import dataclass

from gpu_mcp_server.services.builds.build_cache import BuildCache
from gpu_mcp_server.services.builds.compiler import Compiler
from gpu_mcp_server.services.builds.disassembly import Inspector
from gpu_mcp_server.services.builds.porting import Porter
from gpu_mcp_server.services.builds.processor_code import Assembler
from gpu_mcp_server.services.builds.program_builds import ProgramBuilder
from gpu_mcp_server.services.builds.project_builds import Projects
from gpu_mcp_server.services.documentation.doc_search import Documents
from gpu_mcp_server.services.jobs.job_runner import JobRunner
from gpu_mcp_server.services.store import Store
from gpu_mcp_server.settings.server_settings import Settings


@dataclass(frozen=True)
class BuildServices:
    """Compiles files, builds projects and programs, ports them, and shows what came out."""

    compiler: Compiler
    inspector: Inspector
    porter: Porter
    projects: Projects
    programs: ProgramBuilder

    @classmethod
    def create(cls, settings: Settings, jobs: JobRunner, store: Store, documents: Documents) -> "BuildServices":
        """Return them over the same jobs and store."""
        db, artifacts, workspaces, experience = store.db, store.artifacts, store.workspaces, store.experience
        compiler = Compiler(settings, jobs, db, artifacts, experience, documents)
        return cls(
            compiler,
            Inspector(settings, jobs, db, artifacts, experience, Assembler(jobs, compiler, artifacts)),
            Porter(settings, jobs, workspaces, compiler),
            Projects(settings, jobs, workspaces, artifacts, BuildCache(db, artifacts)),
            ProgramBuilder(settings, jobs, db, artifacts),
        )
