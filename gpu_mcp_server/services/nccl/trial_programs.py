"""Programs that a verification builds: as given, under stress, the original, and the differential program's two."""

from dataclasses import dataclass, field

from gpu_mcp_server.models.nccl_check import NcclTiming
from gpu_mcp_server.nccl.checks import instrument, kernels
from gpu_mcp_server.nccl.program_model.edits import Edits
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from gpu_mcp_server.services.nccl.rank_jobs import NcclBuild, NcclBuildResult, ProgramLaunch

DIFFERENTIAL = "gmcp_differential.cu"
STARTERS = frozenset({"fork", "vfork", "posix_spawn", "posix_spawnp", "execv", "execvp", "execl", "system", "popen"})


@dataclass
class OriginalRun:
    """The original's instrumented build and the buffers that it leaves: one for all stages of a program."""

    built: NcclBuildResult | None = None
    dumps: dict[str, bytes] | None = None


@dataclass
class VerifiedProgram:
    """A program under trial with its original."""

    program: ProgramModel
    original: ProgramModel | None
    launch: ProgramLaunch
    original_run: OriginalRun = field(default_factory=OriginalRun)
    interim: bool = False
    """Another stage follows."""
    built: dict[str, NcclBuildResult] = field(default_factory=dict[str, NcclBuildResult])
    log: list[str] = field(default_factory=list[str])
    timings: list[NcclTiming] = field(default_factory=list[NcclTiming])
    left_out: list[str] = field(default_factory=list[str])


def builds(subject: VerifiedProgram) -> dict[str, NcclBuild]:
    """Return the programs that the trials need, by name: plain, stress, original, differential, late.

    `late` is the differential program over kernels that are late after their first barrier.
    """
    program, original = subject.program, subject.original
    files = _texts(program)
    stressed = instrument.instrument_program(program, kernels.communicating(program))
    subject.left_out = stressed.left_out
    found = {"plain": NcclBuild(files, program.main), "stress": NcclBuild(stressed.files, program.main, ("GMCP_LATE",))}
    if original is not None and subject.original_run.built is None:
        found["original"] = NcclBuild(instrument.instrument_program(original, {}).files, original.main)
    used = instrument.used_collectives(program)
    if used:
        defines = tuple(f"CHECK_{name.removeprefix('nccl').upper()}" for name in used)
        own = {p.rpartition("/")[2]: t for p, t in files.items() if "/ncclx" in f"/{p}"}
        own[DIFFERENTIAL] = instrument.differential()
        found["differential"] = NcclBuild(own, DIFFERENTIAL, defines)
        found["late"] = NcclBuild({**own, **_late(program)}, DIFFERENTIAL, (*defines, "GMCP_LATE"))
    return found


def _texts(program: ProgramModel) -> dict[str, str]:
    return {p: s.data.decode("utf-8", "surrogateescape") for p, s in program.sources.items()}


def _late(program: ProgramModel) -> dict[str, str]:
    """Return the generated kernels, made late, with what they include for it."""
    found = {instrument.HEADER: instrument.header()}
    for path, source in program.sources.items():
        own = [k for k in kernels.communicating(program).values() if k.source is source]
        if own and "/ncclx" in f"/{path}":
            edits = Edits(source)
            for kernel in own:
                instrument.delay_kernel(edits, kernel)
            found[path.rpartition("/")[2]] = f'#include "{instrument.HEADER}"\n' + edits.apply()
    return found


def blocking_is_safe(program: ProgramModel) -> bool:
    """Say whether launches may block: not where one thread drives several GPUs, as the first would wait for ever.

    The generated block's own groups say nothing: they hold as many communicators as the program has in a thread.
    """
    names = {c.name for c in program.calls if "/ncclx" not in f"/{c.path}"}
    return "ncclCommInitAll" not in names and "ncclGroupStart" not in names


def devices_of_a_process(program: ProgramModel, launch: ProgramLaunch) -> int:
    """Return how many GPUs one process drives: all of them where the program itself starts no other process."""
    names = {c.name for c in program.calls if "/ncclx" not in f"/{c.path}"}
    return launch.ranks if launch.launcher == "self" and not names & STARTERS else 1
