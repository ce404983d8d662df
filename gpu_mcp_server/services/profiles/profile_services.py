"""The services of profiles: programs under a profiler or a checker, and questions about what was measured."""

from dataclasses import dataclass

from gpu_mcp_server.services.builds.compiler import Compiler
from gpu_mcp_server.services.jobs.job_services import JobServices
from gpu_mcp_server.services.profiles.measured_ceilings import MeasuredCeilings
from gpu_mcp_server.services.profiles.memory_checker import Checker
from gpu_mcp_server.services.profiles.processor_ceilings import ProcessorCeilingMeter
from gpu_mcp_server.services.profiles.processor_profiler import ProcessorProfiler
from gpu_mcp_server.services.profiles.profile_queries import Profiles
from gpu_mcp_server.services.profiles.profile_targets import Targets
from gpu_mcp_server.services.profiles.profiler import Profiler
from gpu_mcp_server.services.profiles.tool_jobs import ToolJobs
from gpu_mcp_server.services.store import Store
from gpu_mcp_server.settings.server_settings import Settings


@dataclass(frozen=True)
class ProfileServices:
    """Runs programs under profilers and checkers, and answers about what they found."""

    checker: Checker
    profiler: Profiler
    queries: Profiles
    tools: ToolJobs
    targets: Targets

    @classmethod
    def create(cls, settings: Settings, jobs: JobServices, store: Store, compiler: Compiler) -> "ProfileServices":
        """Return them over the same jobs and store."""
        artifacts, experience = store.artifacts, store.experience
        tools = ToolJobs(settings, jobs.runner, jobs.table, artifacts, experience)
        targets = Targets(jobs.runner, store.workspaces, artifacts, experience, store.problems, compiler)
        processor = ProcessorProfiler(tools, targets, ProcessorCeilingMeter(settings, jobs.runner, store.db))
        profiler = Profiler(tools, targets, MeasuredCeilings(settings, jobs.runner, store.db), processor)
        return cls(Checker(tools, targets), profiler, Profiles(experience, artifacts), tools, targets)
