"""The stages of a transformation, one after the other, each on what the one before it made."""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from posixpath import basename, dirname, join, relpath, splitext

from tree_sitter import Node

from gpu_mcp_server.models.transform import Api, Library, Stage, TransformResult
from gpu_mcp_server.nccl.analysis.advice import advice, is_old, rccl_advice
from gpu_mcp_server.nccl.analysis.communication_graph import OURS, Analysis
from gpu_mcp_server.nccl.analysis.feasibility import is_hip_program, stage_a, stage_b
from gpu_mcp_server.nccl.analysis.token_count import missing_tokens
from gpu_mcp_server.nccl.program_model.edits import EditConflict, Edits
from gpu_mcp_server.nccl.program_model.markers import MarkerFault, blocks
from gpu_mcp_server.nccl.program_model.program import (
    GENERATED,
    ProgramModel,
    device_name,
    resolve_include,
    units_of,
)
from gpu_mcp_server.nccl.program_model.syntax import Parse, ParsedSource
from gpu_mcp_server.nccl.program_model.syntax import field as child
from gpu_mcp_server.nccl.program_model.syntax import parse as parse_source
from gpu_mcp_server.nccl.stages.evolve_markers import add_markers
from gpu_mcp_server.nccl.stages.infrastructure import EditedFiles, add_infrastructure, is_done
from gpu_mcp_server.nccl.stages.replace_calls import has_kernel, replace_calls
from gpu_mcp_server.nccl.stages.setup_location import NoSetupLocation
from gpu_mcp_server.nccl.stages.warmup import warm_up
from gpu_mcp_server.nccl.templates import INFRASTRUCTURE, KERNELS, infrastructure, kernels

STAGES: tuple[Stage, ...] = ("infrastructure", "warmup", "replace", "mark")
"""In the order in which they are done: what a warm-up repeats is then replaced and marked too."""
UNVERIFIED_GIN = "the GIN kernels compile; they have not run, as no RDMA NIC was at hand"
RAN_ON_GPU = frozenset({"AlltoAll", "AllReduce", "Sweep"})
"""Generated collectives that ran on two H200s (benchmarks/results/h200-nccl.md); a sweep is an all-to-all."""
UNVERIFIED_RUN = "nothing was run here: verify_nccl builds, runs and compares"
NO_GIN_KERNEL = "no kernel is generated for it by GIN, so the call stays and its kernel is left to you"
FAULTS = (NoSetupLocation, EditConflict, MarkerFault)


@dataclass
class Transformation:
    """A program on its way."""

    files: dict[str, str]
    main: str
    analysis: Analysis
    """Of the files as they were when a stage began."""
    parse: Parse
    given: Mapping[str, str]
    """The files before the first stage."""
    done: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    left: list[str] = field(default_factory=list[str])
    failed: bool = False
    is_stale: bool = False
    api: str = "lsa"

    def step(self, stage: Stage, work: Callable[[Analysis, EditedFiles], list[str]]) -> None:
        """Do one stage: wholly or, where it meets a fault, not at all."""
        if self.is_stale:
            self.analysis, self.is_stale = Analysis(self.files, self.main, parse=self.parse), False
        edits = EditedFiles(self.analysis)
        try:
            self.done[stage] = self._in_given_lines(work(self.analysis, edits))
            changed = edits.changed_texts()
        except FAULTS as fault:
            self.done[stage] = []
            self.left.append(f"{stage}: {fault}")
            self.failed = True
            return
        self.files, self.is_stale = {**self.files, **changed}, bool(changed)

    def _in_given_lines(self, done: list[str]) -> list[str]:
        """Return sentences with the lines of the files that were given: stages before have moved them."""
        for path in (p for p, text in self.given.items() if done and self.files.get(p, text) != text):
            lines = _line_origins(self.given[path], self.files[path])
            place = re.compile(rf"(?<![\w/.]){re.escape(path)}:(\d+)")
            done = [place.sub(lambda x, p=path, at=lines: f"{p}:{at[int(x[1]) - 1]}", said) for said in done]
        return done


def _line_origins(given: str, now: str) -> list[int]:
    """Return for each line of a text the line of the given one that it is, or that it stands before or replaces."""
    found: list[int] = []
    matcher = difflib.SequenceMatcher(None, given.splitlines(), now.splitlines(), autojunk=False)
    for _, first, last, start, end in matcher.get_opcodes():
        found += [min(first + at, max(first, last - 1)) + 1 for at in range(end - start)]
    return found


def transform(
    files: Mapping[str, str],
    main: str,
    *,
    stages: Sequence[Stage] = STAGES,
    api: Api = "auto",
    nccl_version: tuple[int, int, int] | None = None,
    library: Library = "nccl",
) -> tuple[TransformResult, dict[str, str]]:
    """Transform a program and return the result with the new files, those that were given left alone.

    Args:
        files: Text by path.
        main: The file with the collectives, or one that includes or calls it.
        stages: Which to do; their order is fixed.
        api: auto is lsa; gin where ranks do not share NVLink.
        nccl_version: Of the headers that it will be built against, if known.
        library: Whose headers they are; for RCCL, and for a program of HIP, nothing is generated.
    """
    chosen = "gin" if api == "gin" else "lsa"
    parse = cache(parse_source)
    analysis = Analysis(files, main, parse=parse)
    if library == "nccl" and not is_hip_program(analysis) and is_old(nccl_version, chosen):
        return _refused(analysis, chosen, nccl_version), {}
    already = any(c.full_name.startswith(GENERATED) for c in analysis.program.calls)
    lost = [token.text() for token in missing_tokens(analysis)]
    if not analysis.sites and not already and lost:
        headline = f"{main} stays as it is: none of {len(lost)} calls of NCCL in the text was understood"
        return TransformResult(status="needs the agent", headline=headline, api=chosen, needs_agent=lost), {}
    if not analysis.sites and not already:
        headline = "nothing to transform: no host call of NCCL communicates in these files"
        return TransformResult(status="nothing to transform", headline=headline, api=chosen), {}
    if library == "rccl" or is_hip_program(analysis):
        return _left_to_hip(analysis, chosen, nccl_version if library == "rccl" else None), {}
    own = {p: t for p, t in files.items() if basename(p) not in OURS}
    work = Transformation(own, main, analysis, parse, own, api=chosen)
    reasons = [*lost, *_reasons(analysis, stages)]
    if "replace" in stages:
        stay = [s for s in analysis.sites if not has_kernel(analysis, s, chosen)]
        reasons += [f"{s.id} {s.call.name} {s.call.path}:{s.call.line}: {NO_GIN_KERNEL}" for s in stay]
    for stage in STAGES:
        if stage in stages:
            work.step(stage, _stage(stage, work))
    made = _renamed(files, work, main, chosen)
    if work.done.get("mark"):
        new = {p: t for p, t in made.items() if basename(p) not in OURS}
        work.done["mark"] = [f"{p}:{b.first_line}-{b.last_line} may change" for p, t in new.items() for b in blocks(t)]
    return _result(files, work, made, chosen, [*work.left, *reasons], nccl_version), made


def _stage(stage: Stage, work: Transformation) -> Callable[[Analysis, EditedFiles], list[str]]:
    def infrastructure_stage(analysis: Analysis, edits: EditedFiles) -> list[str]:
        return [] if is_done(analysis) else add_infrastructure(analysis, edits)

    def replace_stage(analysis: Analysis, edits: EditedFiles) -> list[str]:
        return replace_calls(analysis, edits, work.api) if is_done(analysis) else []

    def warm_stage(analysis: Analysis, edits: EditedFiles) -> list[str]:
        done, left = warm_up(analysis, edits)
        work.left += left
        return done

    return {
        "infrastructure": infrastructure_stage,
        "replace": replace_stage,
        "mark": add_markers,
        "warmup": warm_stage,
    }[stage]


def _reasons(analysis: Analysis, stages: Sequence[Stage]) -> list[str]:
    """Return each reason once, after the sites that have it."""
    sites: dict[str, list[str]] = {}
    for site in analysis.sites:
        reasons = stage_b(analysis, site) if "replace" in stages else stage_a(analysis, site)
        for reason in dict.fromkeys(reasons):
            sites.setdefault(reason, []).append(f"{site.id} {site.call.name} {site.call.path}:{site.call.line}")
    return [f"{', '.join(own)}: {reason}" for reason, own in sites.items()]


def _refused(analysis: Analysis, api: str, version: tuple[int, int, int] | None) -> TransformResult:
    said = ".".join(map(str, version or ()))
    first = "2.28.7" if api == "gin" else "2.28"
    headline = (
        f"NCCL {said} has no device API for {api.upper()}, {first} is the first: {len(analysis.sites)} sites stay"
    )
    return TransformResult(
        status="needs the agent",
        headline=headline,
        api=api,
        needs_agent=[f"install nvidia-nccl-cu13>={first} (headers and libnccl.so.2 of one version) and try again"],
    )


def _left_to_hip(analysis: Analysis, api: str, version: tuple[int, int, int] | None) -> TransformResult:
    said = "".join(f" {'.'.join(map(str, v))}" for v in [version] if v)
    headline = f"RCCL{said}: nothing is generated for it, {len(analysis.sites)} sites stay"
    return TransformResult(
        status="needs the agent",
        headline=headline,
        api=api,
        needs_agent=["the generated code is CUDA and was never compiled by hipcc: write RCCL's kernels by hand"],
        advice=rccl_advice(version),
    )


def _renamed(given: Mapping[str, str], work: Transformation, main: str, api: str) -> dict[str, str]:
    """Give changed files names of their own, and let those that include them include the new ones."""
    changed = {p for p in work.files if work.files[p] != given.get(p)}
    if not changed:
        return {}
    own = work.analysis.program.sources
    texts = {p: t for p, t in work.files.items() if p in own or p in changed}
    changed.add(main)
    while True:
        includers = {p for p, t in texts.items() if p not in changed and _includes(work, p, t, texts) & changed}
        if not includers:
            break
        changed |= includers
    made = {device_name(p): _pointed(work, p, texts, changed) for p in sorted(changed)}
    folder = dirname(main)
    uses = any(GENERATED in t for t in made.values())
    generated = {INFRASTRUCTURE: infrastructure(), KERNELS: kernels("gin" if api == "gin" else "lsa")}
    for name, text in generated.items():
        if uses and given.get(join(folder, name)) is None:
            made[join(folder, name)] = text
    return made


def _includes(work: Transformation, path: str, text: str, files: Mapping[str, str]) -> set[str]:
    source = work.parse(path, text, 0)
    names = [source.text(n).strip('"') for n in _own_includes(source)]
    return {f for n in names if (f := resolve_include(n, path, files)) is not None}


def _own_includes(source: ParsedSource) -> list[Node]:
    """Return the names of a file's includes that stand in quotes."""
    found = [child(n, "path") for n in source.landmarks if n.type == "preproc_include"]
    return [n for n in found if n is not None and source.text(n).startswith('"')]


def _pointed(work: Transformation, path: str, files: Mapping[str, str], changed: set[str]) -> str:
    """Return a text whose includes of changed files name the new ones."""
    source = work.parse(path, files[path], 0)
    edits = Edits(source)
    for name in _own_includes(source):
        target = resolve_include(source.text(name).strip('"'), path, files)
        if target is not None and target in changed and device_name(target) != target:
            edits.replace(name, f'"{relpath(device_name(target), dirname(path) or ".")}"')
    return edits.apply()


def _result(
    given: Mapping[str, str],
    work: Transformation,
    made: Mapping[str, str],
    api: str,
    left: list[str],
    version: tuple[int, int, int] | None,
) -> TransformResult:
    new = device_name(work.main) if made else work.main
    worked = any(work.done.values())
    status = "unchanged" if not left else "needs the agent"
    if worked and made:
        status = "partial" if left else "done"
    unverified = [UNVERIFIED_RUN] if made else []
    own = "".join(text for p, text in made.items() if basename(p) not in OURS)
    untried = sorted(set(re.findall(r"ncclx::([A-Z]\w*)\(", own)) - RAN_ON_GPU - {"GroupStart", "GroupEnd"})
    if api == "lsa" and untried:
        unverified.append(f"{', '.join(untried)}: their kernels have run on no GPU yet")
    if api == "gin" and made:
        unverified.append(UNVERIFIED_GIN)
    return TransformResult(
        status=status,
        headline=_headline(status, work, new, len(left)),
        api=api,
        done=work.done,
        needs_agent=list(dict.fromkeys(left)),
        advice=advice(left, version),
        main=new,
        files=sorted(made),
        build=_build(work, given, made, new) if made else None,
        unverified=unverified,
        diff=_diff(given, work, made),
    )


def _headline(status: str, work: Transformation, new: str, left: int) -> str:
    if status == "unchanged":
        return f"unchanged: {work.main} has these stages already"
    if status == "needs the agent":
        return f"{work.main} stays as it is: {_counted(left, 'obstacle')}, said below"
    names = ", ".join(s for s, d in work.done.items() if d)
    return f"{new}: {names}" + (f"; {_counted(left, 'obstacle')} left to the agent" if left else "")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


def _build(work: Transformation, given: Mapping[str, str], made: Mapping[str, str], main: str) -> str:
    files = {**given, **made}
    program = ProgramModel.read(files, main, parse=work.parse)
    units = units_of({p: files[p] for p in program.sources}, main, work.parse)
    every = " ".join(units) if all(u.endswith(".cu") for u in units) else f"-x cu {' '.join(units)}"
    stem = splitext(basename(main))[0]
    link = "-L$NCCL/lib -l:libnccl.so.2 -Xlinker -rpath -Xlinker $NCCL/lib"
    return f"nvcc -std=c++17 -O2 -arch=sm_90 -I$NCCL/include {every} -o {stem} {link}"


def _diff(given: Mapping[str, str], work: Transformation, made: Mapping[str, str]) -> str:
    lines: list[str] = []
    for path in sorted(work.files):
        new = made.get(device_name(path))
        if new is not None and path in given and new != given[path]:
            lines += difflib.unified_diff(
                given[path].splitlines(), new.splitlines(), path, device_name(path), lineterm="", n=1
            )
    return "\n".join(lines)
