"""Jobs that are about to come, announced to their host: what they need ahead is made while something else goes on."""

from collections.abc import Awaitable, Mapping

from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.hostd.protocol import JobSpec, to_json
from gpu_mcp_server.models.build import JudgedKind
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.services.evaluation.built_candidate import BuiltCandidate
from gpu_mcp_server.services.evaluation.judge_job import judge_spec
from gpu_mcp_server.services.hosts.host_connections import HostProbe
from gpu_mcp_server.services.jobs.job_runner import JobRunner
from gpu_mcp_server.settings.server_settings import Settings


class Prewarming:
    """Says early what will be asked for. It is never an error that it could not: the job then starts cold."""

    def __init__(self, settings: Settings, jobs: JobRunner) -> None:
        self._settings, self._jobs = settings, jobs

    async def judge(
        self,
        problem: Problem,
        probe: HostProbe,
        host: str,
        device: str,
        kind: JudgedKind,
        code: Awaitable[Mapping[str, bytes]],
    ) -> None:
        """Have the judge's processes import what they need before there is a candidate.

        Nothing of the candidate is in them: only the judge's own files are there, as with those made after a job.
        They are a job's only if that is shown the same tree, so compiled code that is not there yet is waited for.

        Args:
            problem: What will be judged by; of a module problem the draft is enough. Programs have no such processes.
            probe: The host.
            host: Its name.
            device: `cpu` or `cuda`; on others nothing is judged.
            kind: Of the candidate that is expected.
            code: The compiled code that it will be judged with, by file (`judge_code`).
        """
        if problem.program is not None or device not in ("cpu", "cuda"):
            return
        try:
            candidate = BuiltCandidate(kind, b"", code=await code)
            spec, blobs = judge_spec(problem, probe, self._settings, host=host, device=device, candidate=candidate)
            await self._announce(spec, blobs, host)
        except GpuMcpError:
            return  # whoever submits the job meets the same, and says so

    async def job(self, spec: JobSpec, blobs: Mapping[str, bytes], host: str) -> None:
        """Have what a job's program prepares made before there is the job; only what decides its shape is looked at."""
        try:
            await self._announce(spec, blobs, host)
        except GpuMcpError:
            return  # as above

    async def _announce(self, spec: JobSpec, blobs: Mapping[str, bytes], host: str) -> None:
        """Tell a host of a job: what decides its shape, its read-only trees among that, and none of its files."""
        spec = self._jobs.with_host_defaults(spec._replace(files={}), host)
        there, wanted = self._jobs.known_blobs(host), spec.contents()
        sending = {s: blobs[s] for s in wanted - there}
        for _ in range(2):
            listed = [[s, len(d)] for s, d in sending.items()]
            answer, _ = await self._jobs.hosts.call(
                host, "expect", b"".join(sending.values()), spec=to_json(spec), blobs=listed
            )
            if not answer["missing"]:
                there |= wanted
                return
            there -= set(answer["missing"])
            sending = {s: blobs[s] for s in answer["missing"]}
