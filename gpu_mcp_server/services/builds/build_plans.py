"""Plan a build: the host's compiler and its command, the processor time it may take, and the note on longer ones."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpu_mcp_server.errors import BadRequest, ToolMissing
from gpu_mcp_server.hostd.protocol import JobRecord, Limits, ProcessSpec
from gpu_mcp_server.models.build import BuildOptions
from gpu_mcp_server.models.toolchains import Python
from gpu_mcp_server.package_files import worker_source
from gpu_mcp_server.services.builds.candidate_source import CandidateSource, compiled_language
from gpu_mcp_server.services.hosts.host_connections import HostProbe
from gpu_mcp_server.services.hosts.judge_environments import packages_hint
from gpu_mcp_server.settings.server_settings import PREFIX, Settings
from gpu_mcp_server.toolchains import cc, hip, hiprtc, launchers, nvcc, nvrtc, triton
from gpu_mcp_server.toolchains.architectures import CompileTarget, device_target, own_archs, torch_list
from gpu_mcp_server.toolchains.base import CompilePlan, Toolchain, host_compiler_of, toolchains_of
from gpu_mcp_server.toolchains.flags import checked_nvcc_flags, libraries
from gpu_mcp_server.toolchains.header_trees import include_options, linking_arguments, trees_of
from gpu_mcp_server.toolchains.linking import linking_of
from gpu_mcp_server.toolchains.occupancy import checked_block
from gpu_mcp_server.toolchains.torch_bindings import needs_torch
from gpu_mcp_server.toolchains.torch_extension import standard_flags, with_torch

DEFAULT_ARCH = "sm_90"
"""Where the host has no GPU to compile for."""
DEFAULT_AMD_ARCH = "gfx90a"

MISSING = {
    "cuda": ("nvcc", "Install the CUDA toolkit there, or set `cuda` of this host to its root."),
    "c": ("A C compiler", "apt-get install gcc."),
    "cpp": ("A C++ compiler", "apt-get install g++."),
    "hip": (
        "A HIP compiler",
        "apt-get install hipcc; for gfx942 and later also clang-19 lld-19 clang-tools-19, or ROCm.",
    ),
    "launcher": ("A Python with torch", "`gpu-mcp-server hosts set NAME --with torch`, or name one: judge_python."),
    "triton": ("Triton", "`gpu-mcp-server hosts set NAME --with triton`, or name a Python that has it: judge_python."),
}
SHORT, LONG = "compile_cpu_s", "long_compile_cpu_s"
"""Settings: of a compiler that reads one source, and of one that may read a tree of headers."""
SHORT_WALL_S, LONG_WALL_S = 180.0, 1200.0
"""What a compile may take by the clock with the settings as they are: others may have the processor meanwhile."""


@dataclass(frozen=True)
class PlannedBuild:
    """A plan, and who carries it out."""

    toolchain: Toolchain
    plan: CompilePlan
    arch: str | None
    note: str = ""
    """What to tell besides what came of it."""


def build_of(source: CandidateSource, probe: HostProbe, host: str, wish: BuildOptions) -> PlannedBuild:
    """Choose a compiler and plan the build, with the files that lie beside the source.

    Raises:
        ToolMissing: If the host has no compiler for the language.
        BadRequest: If a flag, the architecture or the compiler's name is not known, or no block has so many threads.
    """
    if wish.block is not None:
        checked_block(wish.block)
    build = _chosen(source, probe, host, wish)
    plan = _laid(build.plan, source) if source.beside else build.plan
    return replace(build, plan=_with_trees(plan, source, probe, build.toolchain))


def _with_trees(plan: CompilePlan, source: CandidateSource, probe: HostProbe, toolchain: Toolchain) -> CompilePlan:
    """Return the plan with the host's trees of headers that the source or a file beside it reads."""
    if source.language in ("triton", "launcher"):
        return plan
    trees = trees_of((source.text, *source.beside.values()), probe.toolchains.headers, source.beside)
    if not trees:
        return plan
    roots = dict.fromkeys((*plan.roots, *(root for tree in trees for root in tree.roots)))
    return replace(
        plan,
        argv=(*linking_arguments(plan.argv, trees), *include_options(trees, toolchain.name)),
        roots=tuple(roots),
        headers=tuple(tree.title() for tree in trees),
    )


def _laid(plan: CompilePlan, source: CandidateSource) -> CompilePlan:
    """Return the plan with the source in its folder, and the others around it."""
    if not source.folder:
        return replace(plan, files={**source.beside, **plan.files})
    own = {f"{source.folder}/{name}": text for name, text in plan.files.items()}
    argv = tuple(f"{source.folder}/{word}" if word in plan.files else word for word in plan.argv)
    return replace(plan, argv=argv, files={**source.beside, **own})


def _chosen(source: CandidateSource, probe: HostProbe, host: str, wish: BuildOptions) -> PlannedBuild:
    about, language = probe.model_dump(), compiled_language(source)
    toolchains = _named(toolchains_of(about, language), wish.compiler, language)
    if not toolchains:
        program, hint = MISSING[language]
        raise ToolMissing(program, host, hint=hint)
    if language == "hip":
        return _hip(toolchains, source, probe, host, wish)
    toolchain = toolchains[0]
    if language == "launcher":
        arch = resolve_arch(wish.arch, probe, host) or _own_gpu(probe)
        plan = launchers.plan(
            source.text, toolchain, arch, wish, name=source.name, environment=compiling_environment(probe),
            roots=(probe.nvcc.root,) if probe.nvcc else (),
        )  # fmt: skip
        return PlannedBuild(toolchain, plan, arch)
    if language == "triton":
        arch = resolve_arch(wish.arch, probe, host) or _own_gpu(probe)
        return PlannedBuild(toolchain, triton.plan(source.text, toolchain, arch, wish, name=source.name), arch)
    if language == "cuda":
        return _cuda(toolchains, source, probe, host, wish)
    python = torch_python(source, probe, host)
    if wish.arch is not None:
        raise BadRequest(
            f"{language} is compiled for the processor: {wish.arch!r} names no GPU to compile for.",
            hint="Leave arch out, set language to cuda, hip or triton, or give -march= in flags.",
        )
    flags = standard_flags(wish.flags, python) if python else wish.flags
    plan = cc.plan(source.text, toolchain, flags, language=language, name=source.name)
    return PlannedBuild(toolchain, with_torch(plan, python, cuda=False) if python else plan, None)


def torch_python(source: CandidateSource, probe: HostProbe, host: str) -> Python | None:
    """Return the Python with whose torch a source is compiled; None for one that includes none of torch's headers.

    Raises:
        ToolMissing: If the judge's Python has no torch to compile with, or no headers of its own.
    """
    texts = (source.text, *source.beside.values())
    if source.language not in ("cpp", "cuda") or not any(needs_torch(text) for text in texts):
        return None
    judge = probe.judge.path if probe.judge else ""
    python = next((p for p in probe.toolchains.pythons if p.path == judge), None)
    if python is None or not python.torch:
        hint = packages_hint(host, "torch")
        raise ToolMissing("torch, which the source includes,", host, hint=f"{judge or 'No Python'} has none. {hint}")
    if python.torch_build is None:
        hint = "apt-get install python3-dev, or a Python with its headers as judge_python."
        raise ToolMissing(f"Python.h of {python.path}, which torch's headers include,", host, hint=hint)
    return python


def _cuda(
    toolchains: Sequence[Toolchain], source: CandidateSource, probe: HostProbe, host: str, wish: BuildOptions
) -> PlannedBuild:
    """Plan for NVRTC where it can do what is wished, otherwise for nvcc."""
    by_name = {t.name: t for t in toolchains}
    kernels_do = not wish.library and wish.compiler is None and nvrtc.device_only(source.text)
    if "nvrtc" in by_name and (kernels_do or wish.compiler == "nvrtc"):
        chosen = by_name["nvrtc"]
        target = nvidia_target(wish.arch, probe, host, chosen)
        plan = nvrtc.plan(source.text, chosen, target.arch, wish.flags, name=source.name)
        return PlannedBuild(chosen, plan, target.arch, target.note)
    if "nvcc" not in by_name:
        program, hint = MISSING["cuda"]
        raise ToolMissing(program, host, hint=hint)
    host_compiler = host_compiler_of(probe.model_dump())
    if host_compiler is None:
        raise ToolMissing("g++, which nvcc needs,", host, hint="apt-get install g++.")
    chosen = by_name["nvcc"]
    target = nvidia_target(wish.arch, probe, host, chosen)
    python = torch_python(source, probe, host)
    flags = standard_flags(wish.flags, python) if python else wish.flags
    wanted = libraries(checked_nvcc_flags(flags))
    linking = linking_of(wanted, probe.toolchains.libraries, host, chosen.version)
    arguments = (source.text, chosen, target.arch, flags, host_compiler.path)
    plan = nvcc.plan(*arguments, name=source.name, linking=linking)
    plan = with_torch(plan, python, cuda=True) if python else plan
    return PlannedBuild(chosen, plan, target.arch, target.note)


def _hip(
    toolchains: Sequence[Toolchain], source: CandidateSource, probe: HostProbe, host: str, wish: BuildOptions
) -> PlannedBuild:
    """Plan for HIPRTC where it can do what is wished, otherwise for the first clang that knows the architecture."""
    arch = resolve_arch(wish.arch, probe, host, "gfx") or DEFAULT_AMD_ARCH
    quick = next((t for t in toolchains if t.name == hiprtc.NAME), None)
    whole = [t for t in toolchains if t is not quick]
    kernels_do = not wish.library and wish.compiler is None and not source.beside and hiprtc.device_only(source.text)
    if quick and hiprtc.knows(quick, arch) and (kernels_do or wish.compiler == hiprtc.NAME):
        return PlannedBuild(quick, hiprtc.plan(source.text, quick, arch, wish.flags, name=source.name), arch)
    if not whole and wish.compiler is None:
        program, hint = MISSING["hip"]
        raise ToolMissing(program, host, hint=hint)
    chosen = hip.choose(whole or toolchains, arch)
    return PlannedBuild(chosen, hip.plan(source.text, chosen, arch, wish.flags, name=source.name), arch)


def resolve_arch(arch: str | None, probe: HostProbe, host: str, kind: str = "") -> str | None:
    """Return the architecture, that of the host's own GPU for `native`.

    Compilers are not asked: where they see no GPU, and a compiler's job holds none, nvcc falls back to its default.

    Args:
        arch: As a caller gave it.
        probe: The host's.
        host: Its name.
        kind: `sm_` or `gfx`, for a compiler that makes code for no others.

    Raises:
        BadRequest: If the host has no such GPU.
    """
    if arch != "native":
        return arch
    known = (str(g.get("arch") or "") for g in probe.gpus)
    own = next((a for a in known if a.startswith(kind or ("sm_", "gfx"))), None)
    if own is None:
        maker = {"sm_": " from NVIDIA", "gfx": " from AMD"}.get(kind, "")
        raise BadRequest(
            f"'native' means the host's own GPU, and host {host!r} has none{maker}.",
            hint="Name an architecture: sm_90, gfx942 ...",
        )
    return own


def nvidia_target(arch: str | None, probe: HostProbe, host: str, compiler: Toolchain) -> CompileTarget:
    """Return what a compiler of CUDA compiles for: what a caller named, or all that the host's own device can do.

    Raises:
        BadRequest: If that is `native` and the host has no GPU from NVIDIA.
    """
    named = resolve_arch(arch, probe, host, "sm_")
    own = own_archs(probe.gpus)
    if arch not in (None, "native") or not own:
        return CompileTarget(named or DEFAULT_ARCH)
    return device_target(own, compiler.archs, compiler.title)


def _own_gpu(probe: HostProbe) -> str:
    return next((str(g["arch"]) for g in probe.gpus if g.get("arch")), DEFAULT_ARCH)


def process_of(plan: CompilePlan) -> ProcessSpec:
    """Return the process that carries a plan out: the compiler, or our own program in a Python."""
    if not plan.worker:
        return ProcessSpec(argv=plan.argv, env=dict(plan.env))
    source = plan.warm + worker_source(plan.worker)
    if plan.warm or not plan.python:
        return ProcessSpec(argv=plan.argv, env=dict(plan.env), program=source, python=plan.python)
    command = (plan.python, "-I", "-c", source + "\nimport sys\nmain(sys.argv[1:])\n", *plan.argv[1:])
    return ProcessSpec(argv=command, env=dict(plan.env))


def _named(toolchains: Sequence[Toolchain], name: str | None, language: str) -> Sequence[Toolchain]:
    if name is None or not toolchains:
        return toolchains
    chosen = [t for t in toolchains if name == t.name or t.name.startswith(name + "-")]
    if not chosen:
        known = ", ".join(t.name for t in toolchains)
        raise BadRequest(f"{name!r} is no compiler for {language} on this host.", hint=f"There are {known}.")
    return chosen


def compiling_environment(probe: HostProbe) -> dict[str, str]:
    """Return the environment in which Triton and load_inline find ninja, g++ and nvcc, and the GPUs to build for."""
    path = ["/usr/local/cuda/bin", "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"]
    found: dict[str, str] = {}
    if probe.judge:
        path.insert(0, probe.judge.path.rpartition("/")[0])
    if probe.nvcc:
        path.insert(0, f"{probe.nvcc.root}/bin")
        found["CUDA_HOME"] = probe.nvcc.root
    known = probe.nvcc.archs if probe.nvcc else []
    if archs := torch_list(own_archs(probe.gpus), known, probe.judge.torch_archs if probe.judge else ()):
        found["TORCH_CUDA_ARCH_LIST"] = archs
    return {"PATH": ":".join(path), **found}


def cpu_setting(*, long: bool) -> str:
    """Return the name of the setting that limits a compile."""
    return LONG if long else SHORT


def compile_limits(settings: Settings, setting: str, *, wall_s: float | None = None, **more: int) -> Limits:
    """Return the limits of a compile; who raises its processor time gives it more by the clock as well.

    Args:
        settings: They have the processor time.
        setting: Which of them; see `cpu_setting`.
        wall_s: By the clock with the settings as they are, where it is not the usual time.
        more: Other limits.
    """
    cpu_s: float = getattr(settings, setting)
    usual_s: float = Settings.model_fields[setting].default
    wall_s = wall_s or (LONG_WALL_S if setting == LONG else SHORT_WALL_S)
    return Limits(wall_s=wall_s * max(1.0, cpu_s / usual_s), cpu_s=cpu_s, **more)


def note_of(record: JobRecord, setting: str) -> str:
    """Return a record's note; of a compile that a limit of time ended, with the setting that raises it."""
    if record.status != "timeout":
        return record.note
    return f"{record.note}; the setting {setting} ({PREFIX}{setting.upper()}) raises it"
