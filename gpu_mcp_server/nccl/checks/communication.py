"""Compare a program's communication with the original's: collectives lost, changed, or left on the host."""

from collections import Counter
from dataclasses import dataclass

from gpu_mcp_server.nccl.checks.findings import Finding, Severity, error, note
from gpu_mcp_server.nccl.program_model.api_names import plain_collective
from gpu_mcp_server.nccl.program_model.functions import Function
from gpu_mcp_server.nccl.program_model.program import FunctionCall, ProgramModel
from gpu_mcp_server.nccl.program_model.syntax import strip_casts

COLLECTIVES = (
    "ncclAllReduce",
    "ncclAllGather",
    "ncclReduceScatter",
    "ncclAlltoAll",
    "ncclBroadcast",
    "ncclBcast",
    "ncclReduce",
    "ncclGather",
    "ncclScatter",
    "ncclAlltoAllv",
    "ncclSend",
    "ncclRecv",
)
SWEEP = "Sweep"
"""Of the generated block: a loop of sends and receives in one group, folded."""
WRAPPERS = {**{name.removeprefix("nccl"): name for name in COLLECTIVES}, SWEEP: SWEEP}
"""Functions of the generated block, and the collective that each stands for."""
FOLDED = frozenset({"ncclSend", "ncclRecv"})
NAMESPACE = "ncclx"
GENERATED = ("ncclx.cuh", "ncclx_kernels.cuh")
"""Files of the generated block: their own fallbacks are no sites of the program."""
MAKERS = frozenset({"ncclDevCommCreate", "dev_init", "ncclCommInitRank", "ncclCommInitAll"})


@dataclass(frozen=True)
class CommunicationSite:
    """A place of the program that communicates."""

    call: FunctionCall
    collective: str
    """Of host NCCL; empty for a kernel's launch."""
    kind: str
    """host, wrapper or kernel."""

    @property
    def key(self) -> tuple[str, tuple[str, ...]]:
        """Return the collective with its arguments."""
        return self.collective, tuple(self.call.source.text_without_space(strip_casts(n)) for n in self.call.nodes)


def sites_of(program: ProgramModel, kernels: dict[str, Function]) -> list[CommunicationSite]:
    """Return where a program communicates, the generated block left out."""
    found: list[CommunicationSite] = []
    for call in program.calls:
        if call.path.rpartition("/")[2] in GENERATED:
            continue
        if plain_collective(call.name) in COLLECTIVES:
            found.append(CommunicationSite(call, plain_collective(call.name), "host"))
        elif plain_name(call) in WRAPPERS and f"{NAMESPACE}::" in call.source.text(call.node).partition("(")[0]:
            found.append(CommunicationSite(call, WRAPPERS[plain_name(call)], "wrapper"))
        elif (launch := program.launch_of(call)) is not None and launch.kernel in kernels:
            found.append(CommunicationSite(call, "", "kernel"))
    return found


def plain_name(call: FunctionCall) -> str:
    """Return a call's name without the namespace of the generated block."""
    return call.name.removeprefix(f"{NAMESPACE}::")


def findings(program: ProgramModel, kernels: dict[str, Function], original: ProgramModel | None) -> list[Finding]:
    """Return communication that was lost, changed, or left on the host without a word."""
    sites = sites_of(program, kernels)
    found = _nothing(program, sites, bool(kernels))
    if original is None:
        return sorted(set(found + _left(program, sites)))
    before = Counter(s.key for s in sites_of(original, {}) if s.kind == "host")
    after = Counter(s.key for s in sites if s.kind != "kernel")
    launches = [s for s in sites if s.kind == "kernel"]
    folded = FOLDED if any(s.collective == SWEEP for s in sites) else frozenset[str]()
    main = program.sources.get(program.main) or next(iter(program.sources.values()))
    for (name, arguments), times in (before - after).items():
        said = f"{name}({', '.join(arguments)[:100]})"
        if not launches and name not in folded:
            text = f"{said} of the original is gone ({times} of {before[name, arguments]}), and no kernel communicates"
            found.append(error("collectives", main, main.root, text))
    for name, arguments in after - before:
        site = next(s for s in sites if s.key == (name, arguments))
        said = f"{name}({', '.join(arguments)[:100]})"
        if (name, arguments) in before:
            text = f"{said} stands {after[name, arguments] - before[name, arguments]} times more than in the original"
            found.append(_at(site, "note", text))
        elif name != SWEEP:
            found.append(_at(site, "error", f"{said} is not in the original with these arguments"))
    return sorted(set(found + _left(program, sites)))


def _nothing(program: ProgramModel, sites: list[CommunicationSite], could: bool) -> list[Finding]:
    made = [c for c in program.calls if plain_name(c) in MAKERS and c.path.rpartition("/")[2] not in GENERATED]
    device = any(plain_name(c) in {"ncclDevCommCreate", "dev_init"} for c in made)
    if sites or not made:
        return []
    said = error if device and "main" in program.by_name and could else note
    return [said("collectives", made[0].source, made[0].node, "a communicator is made, and nothing communicates")]


def _left(program: ProgramModel, sites: list[CommunicationSite]) -> list[Finding]:
    """Host collectives beside device ones: allowed, but said."""
    device = [s for s in sites if s.kind != "host"]
    return [
        _at(
            s,
            "note",
            f"{s.collective} stays on the host"
            + (f", hidden in macro {s.call.via_macro}" if s.call.via_macro else "")
            + (f", called through {s.call.via_pointer}" if s.call.via_pointer else ""),
        )
        for s in sites
        if device and s.kind == "host"
    ]


def _at(site: CommunicationSite, severity: Severity, text: str) -> Finding:
    return Finding(site.call.path, site.call.line, "collectives", severity, text)
