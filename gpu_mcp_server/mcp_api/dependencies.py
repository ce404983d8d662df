"""The services that tools take as parameters."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from mcp.server.mcpserver import Context, Resolve

from gpu_mcp_server.mcp_api.lab_lifetime import LabHolder
from gpu_mcp_server.mcp_api.progress import CURRENT_PROGRESS, Progress
from gpu_mcp_server.mcp_api.tool_sources import SourceResolver

if TYPE_CHECKING:
    from gpu_mcp_server.services.builds.compiler import Compiler
    from gpu_mcp_server.services.builds.disassembly import Inspector
    from gpu_mcp_server.services.builds.porting import Porter
    from gpu_mcp_server.services.builds.project_builds import Projects
    from gpu_mcp_server.services.commands.command_runner import CommandRunner
    from gpu_mcp_server.services.documentation.doc_search import Documents
    from gpu_mcp_server.services.evaluation.attempt_audit import Auditor
    from gpu_mcp_server.services.evaluation.attempt_listing import AttemptListing
    from gpu_mcp_server.services.evaluation.candidate_batches import Batches
    from gpu_mcp_server.services.evaluation.evaluator import Evaluator
    from gpu_mcp_server.services.evaluation.problem_registry import Registry
    from gpu_mcp_server.services.experience.experience_search import ExperienceSearch
    from gpu_mcp_server.services.jobs.batch_jobs import BatchJobs
    from gpu_mcp_server.services.jobs.gpu_scheduler import GpuScheduler
    from gpu_mcp_server.services.lab import Lab
    from gpu_mcp_server.services.nccl.transform import Collectives
    from gpu_mcp_server.services.nccl.verifier import NcclVerifier
    from gpu_mcp_server.services.problems.problem_table import Problems
    from gpu_mcp_server.services.profiles.memory_checker import Checker
    from gpu_mcp_server.services.profiles.profile_queries import Profiles
    from gpu_mcp_server.services.profiles.profiler import Profiler
    from gpu_mcp_server.services.programs.hotspot_finder import HotspotFinder
    from gpu_mcp_server.services.programs.kernel_dispatch import KernelDispatch
    from gpu_mcp_server.services.programs.overlay_builder import OverlayBuilder
    from gpu_mcp_server.services.programs.problem_capture import ProblemCapture
    from gpu_mcp_server.services.programs.program_verifier import ProgramVerifier
    from gpu_mcp_server.services.status.lab_status import StatusService
    from gpu_mcp_server.services.workspaces.workspace_store import Workspaces
    from gpu_mcp_server.store.artifacts import Artifacts
    from gpu_mcp_server.team.sharing import SharingService
else:  # services bring asyncssh and the store; `tools/list` must not wait for them
    AttemptListing = Any
    Artifacts = Auditor = Batches = Checker = Compiler = Documents = Evaluator = StatusService = Inspector = Any
    Lab = BatchJobs = ExperienceSearch = NcclVerifier = GpuScheduler = Porter = Profiler = Profiles = Problems = (
        Projects
    ) = Registry = CommandRunner = Any
    KernelDispatch = Any
    Collectives = HotspotFinder = OverlayBuilder = ProblemCapture = ProgramVerifier = SharingService = Workspaces = Any


async def _lab(ctx: Context[LabHolder]) -> Any:
    return await ctx.request_context.lifespan_context.lab()


async def _sources(ctx: Context[LabHolder], lab: Annotated[Any, Resolve(_lab)]) -> Any:
    return SourceResolver(lab.store.workspaces, local_files=ctx.request_context.lifespan_context.local_files)


async def _progress() -> Any:
    return CURRENT_PROGRESS.get()


def _service(of: Callable[[Lab], object]) -> Resolve:
    async def pick(lab: Annotated[Any, Resolve(_lab)]) -> Any:
        return of(lab)

    return Resolve(pick)


# Give a tool a parameter of one of these types and it gets the service; the agent never sees it.
ArtifactsDep = Annotated[Artifacts, _service(lambda lab: lab.store.artifacts)]
CheckerDep = Annotated[Checker, _service(lambda lab: lab.profiles.checker)]
ProfilerDep = Annotated[Profiler, _service(lambda lab: lab.profiles.profiler)]
ProfilesDep = Annotated[Profiles, _service(lambda lab: lab.profiles.queries)]
HotspotsDep = Annotated[HotspotFinder, _service(lambda lab: lab.programs.hotspots)]
OverlaysDep = Annotated[OverlayBuilder, _service(lambda lab: lab.programs.overlays)]
ProgramVerifierDep = Annotated[ProgramVerifier, _service(lambda lab: lab.programs.verifier)]
DispatchDep = Annotated[KernelDispatch, _service(lambda lab: lab.programs.dispatch)]
CaptureDep = Annotated[ProblemCapture, _service(lambda lab: lab.programs.capture)]
CollectivesDep = Annotated[Collectives, _service(lambda lab: lab.nccl.collectives)]
CompilerDep = Annotated[Compiler, _service(lambda lab: lab.builds.compiler)]
AuditorDep = Annotated[Auditor, _service(lambda lab: lab.evaluation.auditor)]
ListingDep = Annotated[AttemptListing, _service(lambda lab: lab.evaluation.listing)]
BatchesDep = Annotated[Batches, _service(lambda lab: lab.evaluation.batches)]
NcclVerifierDep = Annotated[NcclVerifier, _service(lambda lab: lab.nccl.verifier)]
InspectorDep = Annotated[Inspector, _service(lambda lab: lab.builds.inspector)]
PorterDep = Annotated[Porter, _service(lambda lab: lab.builds.porter)]
ProjectsDep = Annotated[Projects, _service(lambda lab: lab.builds.projects)]
DocumentsDep = Annotated[Documents, _service(lambda lab: lab.documents)]
EvaluatorDep = Annotated[Evaluator, _service(lambda lab: lab.evaluation.evaluator)]
PoolDep = Annotated[GpuScheduler, _service(lambda lab: lab.jobs.pool)]
LongDep = Annotated[BatchJobs, _service(lambda lab: lab.jobs.long)]
RegistryDep = Annotated[Registry, _service(lambda lab: lab.evaluation.registry)]
ProblemsDep = Annotated[Problems, _service(lambda lab: lab.store.problems)]
MemoryDep = Annotated[ExperienceSearch, _service(lambda lab: lab.memory)]
GpusDep = Annotated[StatusService, _service(lambda lab: lab.status.gpus)]
SharingDep = Annotated[SharingService, _service(lambda lab: lab.store.sharing)]
RunnerDep = Annotated[CommandRunner, _service(lambda lab: lab.commands)]
WorkspacesDep = Annotated[Workspaces, _service(lambda lab: lab.store.workspaces)]
ProgressDep = Annotated[Progress, Resolve(_progress)]
SourcesDep = Annotated[SourceResolver, Resolve(_sources)]
