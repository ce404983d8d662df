"""Services for whole programs: hot spots, problems of their calls, kernels put back and measured."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gpu_mcp_server.services.builds.build_services import BuildServices
from gpu_mcp_server.services.evaluation.evaluation_services import EvaluationServices
from gpu_mcp_server.services.jobs.job_runner import FinishedJob
from gpu_mcp_server.services.jobs.job_table import JobRow
from gpu_mcp_server.services.profiles.profile_services import ProfileServices
from gpu_mcp_server.services.programs.hotspot_finder import HotspotFinder
from gpu_mcp_server.services.programs.kernel_dispatch import KernelDispatch
from gpu_mcp_server.services.programs.overlay_builder import OverlayBuilder
from gpu_mcp_server.services.programs.problem_capture import ProblemCapture
from gpu_mcp_server.services.programs.program_verifier import ProgramVerifier
from gpu_mcp_server.services.store import Store

Settler = Callable[[FinishedJob, JobRow], Awaitable[str]]


@dataclass(frozen=True)
class ProgramServices:
    """The services, one for each step."""

    hotspots: HotspotFinder
    capture: ProblemCapture
    overlays: OverlayBuilder
    verifier: ProgramVerifier
    dispatch: KernelDispatch

    @classmethod
    def create(
        cls, store: Store, builds: BuildServices, profiles: ProfileServices, evaluation: EvaluationServices
    ) -> "ProgramServices":
        """Return them over the profilers' jobs and the judge."""
        tools, targets = profiles.tools, profiles.targets
        return cls(
            HotspotFinder(tools, targets),
            ProblemCapture(tools, targets, evaluation.registry),
            OverlayBuilder(store, builds.compiler),
            ProgramVerifier(tools, targets),
            KernelDispatch(store, evaluation.evaluator),
        )

    def settlers(self) -> dict[str, Settler]:
        """Return by purpose the function that turns a finished job into its report."""
        return {
            "hotspots": self.hotspots.finish_and_describe,
            "capture": self.capture.finish_and_describe,
            "verify": self.verifier.finish_and_describe,
        }
