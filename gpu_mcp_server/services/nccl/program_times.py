"""Time a user's program beside its original: both run in turn, as a whole, on the same GPUs."""

from collections.abc import Mapping

from gpu_mcp_server.errors import MachineLacks, ToolMissing
from gpu_mcp_server.models.nccl_check import NcclProgramTimes, NcclRunOptions
from gpu_mcp_server.services.commands.command_runner import Progress
from gpu_mcp_server.services.nccl.host_support import NcclHost, NcclHosts, require_install
from gpu_mcp_server.services.nccl.rank_jobs import NcclBuild, NcclJobs, NcclRunResult, ProgramLaunch, Run

ROUNDS = 7
"""Pairs of runs that are timed, after one pair that is not."""
SAID_CHARACTERS = 300

Texts = Mapping[str, str]


class ProgramTimes:
    """Times a program against its original."""

    def __init__(self, jobs: NcclJobs, hosts: NcclHosts) -> None:
        self._jobs, self._hosts = jobs, hosts

    async def measure(
        self, original: tuple[Texts, str], changed: tuple[Texts, str], options: NcclRunOptions, progress: Progress
    ) -> NcclProgramTimes:
        """Build both and time them; where that cannot be done, say why instead of a time.

        Args:
            original: The user's program: files and main file.
            changed: What became of it.
            options: How it is started; `until` is not asked.
            progress: Told what happens meanwhile.
        """
        host = await self._hosts.describe_host(options.host)
        launch = ProgramLaunch(tuple(options.arguments), options.ranks, options.launcher, options.timeout_s)
        if host.gpus < options.ranks:
            why = f"{options.ranks} GPUs are needed, {host.host!r} has {host.gpus}"
            return NcclProgramTimes(not_measured=why)
        try:
            require_install(host)
            built = await self._jobs.build(host, [NcclBuild(*original), NcclBuild(*changed)])
        except (MachineLacks, ToolMissing) as error:
            return NcclProgramTimes(not_measured=str(error))
        one, other = built
        if one.binary is None or other.binary is None:
            which = "original" if one.binary is None else "changed program"
            first = (one if one.binary is None else other).first
            return NcclProgramTimes(not_measured=f"the {which} does not build: {first}"[:SAID_CHARACTERS])
        return await self.measure_binaries(host, one.binary, other.binary, launch, options.ranks, progress)

    async def measure_binaries(
        self, host: NcclHost, original: bytes, changed: bytes, launch: ProgramLaunch, gpus: int, progress: Progress
    ) -> NcclProgramTimes:
        """Run both in turn, the order changing from pair to pair; the first pair warms up and does not count."""
        times = NcclProgramTimes()
        for number in range(ROUNDS + 1):
            order = [(original, times.original_s), (changed, times.changed_s)]
            await progress(f"pair {number} of {ROUNDS}")
            for binary, kept in order if number % 2 else reversed(order):
                ran = await self._jobs.run(host, Run(binary, launch, gpus))
                if (why := why_untimed(ran)) is not None:
                    which = "original" if binary is original else "changed program"
                    return NcclProgramTimes(not_measured=f"the {which} {why}"[:SAID_CHARACTERS])
                if number:
                    kept.append(ran.seconds or 0.0)
        return times


def why_untimed(ran: NcclRunResult) -> str | None:
    """Say why a run has no time that counts; None if it has one."""
    if not ran.ok:
        return f"ended as {ran.ending()}"
    return None if ran.seconds else "has no time"
