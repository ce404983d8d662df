"""Ports CUDA to HIP or SYCL: converts, says what a converter does not see, and compiles what came out."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpu_mcp_server.errors import BadRequest, ToolMissing
from gpu_mcp_server.hostd.protocol import FileRef, JobSpec, Limits, ProcessSpec
from gpu_mcp_server.models.build import BuildOptions, CompileResult, Diagnostic
from gpu_mcp_server.models.port import PortFinding, PortResult
from gpu_mcp_server.package_files import worker_source
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.builds.compiler import Compiler
from gpu_mcp_server.services.commands.command_runner import min_level, roots_of
from gpu_mcp_server.services.hosts.host_connections import HostProbe
from gpu_mcp_server.services.jobs.job_runner import FinishedJob, JobRunner
from gpu_mcp_server.services.jobs.job_table import new_job_id
from gpu_mcp_server.services.jobs.output_text import safe_text
from gpu_mcp_server.services.workspaces.workspace_store import Workspaces
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.toolchains.diagnostics import first_messages
from gpu_mcp_server.toolchains.porting import SUFFIXES, Target, findings, hip_name, remaining_cuda_names

OUT = "converted"
MAX_FILES = 200
SHOWN_FILES = 50
COMPILED = 4
WALL_S = 120.0
MAX_STUBS = 8
_MISSING = re.compile(r"^'([\w./+-]{1,200})' file not found|^([\w./+-]{1,200}): No such file or directory")
HOW = (
    "Install one there: hipify-clang or hipify-perl from AMD's ROCm (package hipify-clang), or pip install torch into "
    "the Python that judge_python names, which has a converter inside; Debian has none."
)


@dataclass(frozen=True)
class Converter:
    """Program that converts a source."""

    kind: str
    path: str
    version: str
    roots: tuple[str, ...]


class Porter:
    """Ports sources."""

    def __init__(self, settings: Settings, jobs: JobRunner, workspaces: Workspaces, compiler: Compiler) -> None:
        self._settings, self._jobs, self._workspaces, self._compiler = settings, jobs, workspaces, compiler

    async def port(
        self,
        files: Mapping[str, str],
        *,
        target: Target = "hip",
        arch: str | None = None,
        host: str | None = None,
    ) -> PortResult:
        """Port files of one project; the answer's workspace holds what came out.

        Args:
            files: Text by path; what is no source is carried along unchanged.
            target: hip, or sycl.
            arch: To compile for.
            host: Whose converter and compiler are used.

        Raises:
            ToolMissing: If the host has no converter to HIP.
            BadRequest: If there is no CUDA in the files.
        """
        where = self._jobs.hosts.choose(host)
        probe = await self._jobs.probe(where)
        sources = {p: t for p, t in files.items() if p.endswith(SUFFIXES)}
        if not sources or len(sources) > MAX_FILES:
            raise BadRequest(
                f"There are {len(sources)} C or CUDA sources; 1 to {MAX_FILES} can be ported at once.",
                hint="Give a .cu file, or the workspace of a project.",
            )
        found = findings(sources, target)
        if target == "sycl":
            return await self._sycl(sources, found, probe, where)
        converter = converter_of(probe)
        if converter is None:
            raise ToolMissing("A converter from CUDA to HIP", where, hint=HOW)
        done, converted = await self._convert(sources, converter, probe, where, {p: hip_name(p) for p in sources})
        said = [line.strip() for line in safe_text(done.stderr).splitlines() if "warning:" in line.lower()]
        if not converted:
            last = safe_text(done.stderr).strip().rpartition("\n")[2]
            raise BadRequest(f"{converter.kind} converted nothing: {last or done.record.note}.", hint=HOW)
        listing = await self._workspaces.write(None, {**files, **converted})
        builds, left = await self._built(converted, arch, where)
        return PortResult(
            target=target,
            converter=f"{converter.kind} {converter.version}".strip(),
            workspace_id=listing.workspace_id,
            files=sorted(converted)[:SHOWN_FILES],
            left_over=remaining_cuda_names(converted),
            findings=found,
            builds=builds,
            builds_left_out=left or None,
            converter_said=[s[:200] for s in dict.fromkeys(said)][:5],
            note=done.record.note or None,
        )

    async def _sycl(
        self, sources: Mapping[str, str], found: list[PortFinding], probe: HostProbe, where: str
    ) -> PortResult:
        """Convert by dpct or c2s where there is one; otherwise the findings are a checklist."""
        tool = next((n for n in ("c2s", "dpct") if n in probe.toolchains.tools), None)
        if tool is None:
            note = "no dpct or c2s (SYCLomatic) on this host, so nothing was converted: work through the list"
            return PortResult(target="sycl", findings=found, note=note)
        about = probe.toolchains.tools[tool]
        argv = (about.path, "--in-root=.", f"--out-root={OUT}", *(p for p in sources if p.endswith((".cu", ".cpp"))))
        process = ProcessSpec(argv=argv, env={"LC_ALL": "C"})
        done, converted = await self._job(sources, process, tuple(about.roots), probe, where)
        said = [line for line in safe_text(done.stderr + done.stdout).splitlines() if "DPCT" in line]
        listing = await self._workspaces.write(None, {**sources, **converted}) if converted else None
        return PortResult(
            target="sycl",
            converter=f"{tool} {about.version}",
            workspace_id=listing.workspace_id if listing else None,
            files=sorted(converted)[:SHOWN_FILES],
            left_over=remaining_cuda_names(converted),
            findings=found,
            converter_said=[s[:200] for s in dict.fromkeys(said)][:20],
            note="build_project with system sycl compiles it" if converted else done.record.note or "nothing came out",
        )

    async def _convert(
        self, sources: Mapping[str, str], converter: Converter, probe: HostProbe, where: str, names: Mapping[str, str]
    ) -> tuple[FinishedJob, dict[str, str]]:
        include = probe.toolchains.nvrtc.include if probe.toolchains.nvrtc else []
        request = {"kind": converter.kind, "path": converter.path, "files": dict(names), "include": include}
        process = ProcessSpec(argv=("hipify", json.dumps(request)), program=worker_source("hipify"))
        return await self._job(sources, process, converter.roots, probe, where)

    async def _job(
        self, sources: Mapping[str, str], process: ProcessSpec, roots: tuple[str, ...], probe: HostProbe, where: str
    ) -> tuple[FinishedJob, dict[str, str]]:
        blobs = {hashlib.sha256(t.encode()).hexdigest(): t.encode() for t in sources.values()}
        refs = [FileRef(p, hashlib.sha256(t.encode()).hexdigest(), len(t.encode())) for p, t in sources.items()]
        spec = JobSpec(
            id=new_job_id(),
            purpose="port",
            processes=(process,),
            files={"main": tuple(refs)},
            outputs=("*",),
            roots=tuple(dict.fromkeys((*roots_of(probe, self._settings.hosts[where].roots), *roots))),
            limits=Limits(wall_s=WALL_S),
            min_level=min_level(self._settings),
        )
        done = await self._jobs.run(spec, host=where, blobs=blobs)
        made = [o for o in done.record.outputs if o.path.startswith(OUT + "/")]
        texts = {o.path: await self._jobs.fetch(where, o.sha256) for o in made}
        return done, {p[len(OUT) + 1 :]: t.decode("utf-8", "replace") for p, t in texts.items()}

    async def _built(
        self, converted: Mapping[str, str], arch: str | None, where: str
    ) -> tuple[list[CompileResult], int]:
        """Compile what has kernels, each with the other files beside it."""
        with_kernels = [p for p in sorted(converted) if p.endswith(".hip")]
        builds: list[CompileResult] = []
        for path in with_kernels[:COMPILED]:
            folder = path.rpartition("/")[0]
            prefix = folder + "/" if folder else ""
            beside = {p.removeprefix(prefix): t for p, t in converted.items() if p != path and not p.endswith(".hip")}
            source = CandidateSource(converted[path], "hip", path.rpartition("/")[2], beside=beside)
            try:
                first = await self._compiler.compile(source, BuildOptions(arch=arch), host=where, note="port to HIP")
                builds.append(await self._beyond_missing_headers(first, source, arch, where))
            except ToolMissing:
                break
        return builds, len(with_kernels) - len(builds)

    async def _beyond_missing_headers(
        self, first: CompileResult, source: CandidateSource, arch: str | None, where: str
    ) -> CompileResult:
        """Return a failed compile with what it says behind missing headers: empty files stand in for them."""
        stubs: dict[str, str] = {}
        missing: list[Diagnostic] = []
        latest = first
        while len(stubs) < MAX_STUBS and latest.status == "failed":
            found = [(d, name) for d in latest.diagnostics if (name := missing_header(d)) and name not in stubs]
            if not found:
                break
            missing += [d for d, _ in found]
            stubs |= {name: "#pragma once\n" for _, name in found}
            stubbed = replace(source, beside={**stubs, **source.beside})
            latest = await self._compiler.build(stubbed, host=where, flags=("-I.",), arch=arch)
        if not stubs:
            return first
        messages, left = first_messages([*missing, *(d for d in latest.diagnostics if d not in missing)])
        said = f"with empty files for {', '.join(stubs)} " + (
            "it compiles" if latest.status == "ok" else "it fails too"
        )
        note = "; ".join(filter(None, (first.note, said)))
        return first.model_copy(
            update={
                "diagnostics": messages,
                "diagnostics_left_out": (latest.diagnostics_left_out or 0) + (left or 0) or None,
                "note": note,
            }
        )


def missing_header(found: Diagnostic) -> str | None:
    """Return the header that a message says is not there, by its path below a folder of headers."""
    match = _MISSING.search(found.message)
    name = match[1] or match[2] if match else None
    if found.severity != "error" or not name or name.startswith("/") or ".." in name.split("/"):
        return None
    return name


def converter_of(probe: HostProbe) -> Converter | None:
    """Return the best converter to HIP that a host has."""
    for name in ("hipify-clang", "hipify-perl"):
        tool = probe.toolchains.tools.get(name)
        if tool is not None:
            return Converter(name, tool.path, tool.version, tuple(tool.roots))
    for python in probe.toolchains.pythons:
        if python.torch:
            return Converter("torch", f"{python.site}/torch/utils", python.torch, tuple(python.roots))
    return None
