"""The analysis as data for the agent."""

import re

from gpu_mcp_server.models.collective import (
    BufferUse,
    CollectiveGraph,
    CollectiveSite,
    Feasibility,
    KernelUse,
    P2pExchange,
)
from gpu_mcp_server.nccl.analysis.buffer_dataflow import Partner
from gpu_mcp_server.nccl.analysis.communication_graph import Analysis, Buffer, CallSite
from gpu_mcp_server.nccl.analysis.feasibility import stage_a, stage_b
from gpu_mcp_server.nccl.analysis.token_count import missing_tokens
from gpu_mcp_server.nccl.program_model.api_names import DEVICE_API, ROLES
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from gpu_mcp_server.nccl.program_model.syntax import conditions_of, walk

MANY_WAYS = "a pointer may be more than can be followed: of some buffers not all writers and readers are named"
_QUOTED = re.compile(r'^[^\S\n]*#[^\S\n]*include[^\S\n]*"([^"\n]+)"', re.MULTILINE)
_OF_LIBRARY = re.compile(r"(?:nccl|rccl|cuda|cublas|cudnn|mpi|hip|nvtx)\w*(?:/|\.h)")
SHOWN_TOKENS = 6
"""Calls in the text without a site that are said one by one."""


def export_graph(analysis: Analysis) -> CollectiveGraph:
    """Turn an analysis into what the tool returns."""
    exchanges = _exchanges(analysis)
    sites = [_site(analysis, s, exchanges) for s in analysis.sites]
    sites += _other_sites(analysis, len(sites))
    program = analysis.program
    uses_nccl = any(c.name.startswith("nccl") for c in program.calls) or _names_nccl(analysis)
    device_api = list(dict.fromkeys(f"{c.name} {c.path}:{c.line}" for c in program.calls if c.name in DEVICE_API))
    cut = "too much to go through: what comes after 20,000 events or 5,000 calls, or nests 500 deep, is left out"
    notes = [cut] if analysis.trace.is_cut else []
    notes += [MANY_WAYS] if analysis.places.is_cut else []
    lost = missing_tokens(analysis)
    notes += [token.text() for token in lost[:SHOWN_TOKENS]]
    notes += [f"{len(lost) - SHOWN_TOKENS} more such calls"] if len(lost) > SHOWN_TOKENS else []
    notes += [f"{name}: launched, but its body is not in these files" for name in _bodiless(analysis)]
    return CollectiveGraph(
        status="ok" if sites or lost else "nothing to transform",
        headline=_headline(sites, len(lost), _own_headers(program), uses_nccl=uses_nccl, device=bool(device_api)),
        files=list(program.sources),
        processes=_processes(analysis),
        stages=_stages(sites, len(program.sources)),
        sites=sites,
        exchanges=exchanges,
        kernels=_kernels(analysis),
        communicators=[f"{c.name} {c.path}:{c.line}" for c in analysis.inits],
        device_api=device_api,
        missing_includes=program.missing_includes,
        notes=notes,
    )


def _names_nccl(analysis: Analysis) -> bool:
    """Say whether the code names a type, value or function of NCCL; comments do not count."""
    names = {"identifier", "type_identifier"}
    sources = analysis.program.sources.values()
    return any(n.type in names and s.text(n).startswith("nccl") for s in sources for n in walk(s.root))


def _own_headers(program: ProgramModel) -> list[str]:
    """Return the headers in quotes that are not among the files, libraries' aside: calls may stand there."""
    texts = [s.data.decode("utf-8", "replace") for s in program.sources.values()]
    quoted = {n for t in texts for n in _QUOTED.findall(t)}
    return [n for n in program.missing_includes if n in quoted and not _OF_LIBRARY.match(n)]


def _headline(sites: list[CollectiveSite], lost: int, missing: list[str], *, uses_nccl: bool, device: bool) -> str:
    unsure = f" (and {lost} calls in the text that were not understood: see the notes)" if lost else ""
    if not sites and lost:
        return f"{lost} calls of NCCL stand in the text, and none was understood: see the notes"
    if not sites:
        what = "NCCL is used, but no host call communicates" if uses_nccl else "there is no NCCL in these files"
        seen = f" here; not given: {', '.join(missing[:3])}" + (" and more" if len(missing) > 3 else "")
        unseen = seen if uses_nccl and missing else ""
        return f"nothing to transform: {what}{unseen}" + (" (the device API is there already)" if device else "")
    counts: dict[str, int] = {}
    for site in sites:
        counts[site.call] = counts.get(site.call, 0) + 1
    calls = ", ".join(f"{n} {name}" for name, n in counts.items())
    able = [sum(f.possible for f in fs) for fs in ([s.stage_a for s in sites], [s.stage_b for s in sites])]
    can = f"Stage A (windows) is possible for {able[0]} of them, stage B (device kernels) for {able[1]}"
    return f"{len(sites)} sites{unsure}: {calls}. {can}"


def _other_sites(analysis: Analysis, known: int) -> list[CollectiveSite]:
    """Return what only another branch of a condition that splits statements has; no stage edits it."""
    if analysis.other is None:
        return []
    found = [_site(analysis.other, s, []) for s in analysis.other_sites]
    why = Feasibility(
        possible=False, reasons=["the preprocessor splits a statement here: write the branches out as whole statements"]
    )
    return [
        s.model_copy(update={"id": f"c{known + number}", "stage_a": why, "stage_b": why})
        for number, s in enumerate(found, 1)
    ]


def _stages(sites: list[CollectiveSite], files: int) -> str:
    if not sites:
        return ""
    simple = files == 1 and len({s.call for s in sites}) == 1 and all(s.stage_b.possible for s in sites)
    if simple and not any(s.exchange for s in sites):
        return "simple: one stage in all (infrastructure and replace together) is enough"
    return "two stages: infrastructure first, verified, then replace"


def _processes(analysis: Analysis) -> str:
    several = analysis.drives_several_gpus
    if several is None:
        return "processes unknown"
    return "one process drives several GPUs" if several else "one GPU a process"


def _exchanges(analysis: Analysis) -> list[P2pExchange]:
    found: list[P2pExchange] = []
    for number, pattern in enumerate(analysis.patterns, 1):
        ids = [s.id for s in analysis.sites if any(x.event in s.events for x in pattern.sent)]
        found.append(
            P2pExchange(id=f"x{number}", pattern=pattern.name, sites=ids, grouped=pattern.grouped, why=pattern.why)
        )
    return found


def _site(analysis: Analysis, site: CallSite, exchanges: list[P2pExchange]) -> CollectiveSite:
    call, event = site.call, site.event
    source = analysis.program.sources.get(call.path)
    reasons_a, reasons_b = stage_a(analysis, site), stage_b(analysis, site)
    wait = site.wait.call if site.wait is not None else None
    exchange = next((x for x in exchanges if site.id in x.sites), None)
    return CollectiveSite(
        id=site.id,
        call=call.name,
        path=call.path,
        line=call.line,
        function=event.frame.path(),
        arguments={r: " ".join(t.split()) for r, t in zip(ROLES[call.name], call.arguments, strict=False)},
        loops=_loops(site),
        conditions=_conditions(analysis, site),
        compiled_if=conditions_of(source, call.place) if source is not None else [],
        phase=site.phase,
        group=event.group,
        via=call.via_macro or call.via_pointer,
        in_place=site.in_place,
        buffers=[_buffer(b) for b in site.buffers],
        host_waits_at=f"{wait.name} {wait.path}:{wait.line}" if wait is not None else None,
        exchange=f"{exchange.id} {exchange.pattern}" if exchange is not None else None,
        stage_a=Feasibility(possible=not reasons_a, reasons=reasons_a),
        stage_b=Feasibility(possible=not reasons_b, reasons=reasons_b),
    )


def _conditions(analysis: Analysis, site: CallSite) -> list[str]:
    """Return the conditions around a site, as each branch of a split statement has them."""
    own = [c.text for c in site.event.conditions]
    others = analysis.other.sites if analysis.other is not None else []
    same = next((s for s in others if (s.call.path, s.call.line, s.call.name) == _key(site)), None)
    there = [c.text for c in same.event.conditions] if same is not None else own
    return own if there == own else [*own, f"or, compiled otherwise: {' and '.join(there) or 'always'}"]


def _loops(site: CallSite) -> list[str]:
    """Return the loops around a site, of each way to it, the outermost first."""
    found = {loop.key[:2]: loop.header for event in site.events for loop in event.loops}
    return list(found.values())


def _key(site: CallSite) -> tuple[str, int, str]:
    return site.call.path, site.call.line, site.call.name


def _buffer(buffer: Buffer) -> BufferUse:
    kinds = list(dict.fromkeys(a.kind for a in buffer.allocations))
    made = [(a, a.event.call) for a in buffer.allocations]
    partners = [p.text() for p in _first(buffer.partners)]
    return BufferUse(
        role=buffer.role,
        name=buffer.name,
        expression=buffer.text,
        offset=buffer.offset,
        memory=" or ".join(kinds) or "unknown",
        allocated=[f"{a.function} {c.path}:{c.line} ({a.bytes})" for a, c in made if c is not None],
        producers=partners if buffer.role == "send" else [],
        consumers=partners if buffer.role == "recv" else [],
    )


def _first(partners: list[Partner]) -> list[Partner]:
    return sorted(partners, key=lambda p: p.is_carried)[:12]


def _kernels(analysis: Analysis) -> list[KernelUse]:
    found: list[KernelUse] = []
    for kernel in analysis.program.kernels.values():
        known = analysis.flow.effects.effects_of(kernel)
        effects = {p.name: known[p.name] for p in kernel.parameters if p.name in known}
        launches = [x for x in analysis.program.launches if x.kernel == kernel.name]
        shown = [f"{x.line} {x.api} grid {x.grid or '?'} block {x.block or '?'}" for x in launches]
        found.append(
            KernelUse(
                name=kernel.name,
                path=kernel.source.path,
                line=kernel.line,
                reads=[n for n, a in effects.items() if a.reads],
                writes=[n for n, a in effects.items() if a.writes],
                unknown=[n for n, a in effects.items() if a.is_unknown],
                peer_access=any(a.is_peer for a in effects.values()),
                launches=[" ".join(s.split()) for s in shown],
            )
        )
    return found


def _bodiless(analysis: Analysis) -> list[str]:
    known = analysis.program.kernels
    return list(dict.fromkeys(x.kernel for x in analysis.program.launches if x.kernel and x.kernel not in known))
