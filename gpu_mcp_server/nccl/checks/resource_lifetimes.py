"""Check that resources are freed in order: windows and device communicators before memory and communicators."""

from gpu_mcp_server.nccl.checks.findings import Finding, error, note
from gpu_mcp_server.nccl.checks.origins import allocations_of
from gpu_mcp_server.nccl.program_model.api_names import HOST_SYNCS
from gpu_mcp_server.nccl.program_model.functions import Function
from gpu_mcp_server.nccl.program_model.program import FunctionCall, ProgramModel
from gpu_mcp_server.nccl.program_model.syntax import CALL, enclosing, name_of, strip_casts

PAIRS = (
    ("ncclCommWindowRegister", "ncclCommWindowDeregister"),
    ("ncclDevCommCreate", "ncclDevCommDestroy"),
    ("ncclMemAlloc", "ncclMemFree"),
)
COMM_END = ("ncclCommDestroy", "ncclCommFinalize", "ncclCommAbort")
BRANCHES = ("if_statement", "conditional_expression", "lambda_expression")


def findings(program: ProgramModel, kernels: dict[str, Function]) -> list[Finding]:
    """Return what is left open, or closed in the wrong order.

    Args:
        program: The program.
        kernels: Its kernels that communicate.
    """
    found: list[Finding] = []
    by_name: dict[str, list[FunctionCall]] = {}
    for call in program.calls:
        by_name.setdefault(call.name, []).append(call)
    for made, unmade in PAIRS:
        if made in by_name and unmade not in by_name:
            call = by_name[made][0]
            mains = {f.source.path for f in program.by_name.get("main", [])}
            if call.path in mains:
                found.append(error("pairs", call.source, call.node, f"{made} without {unmade} anywhere"))
            else:
                text = f"not understood: {made} without {unmade} in these files; nothing waits for it, it only leaks"
                found.append(note("pairs", call.source, call.node, text))
    functions = _by_function(program)
    found += _groups(list(functions.values()))
    for calls in functions.values():
        found += _order(calls)
        found += _running(program, calls, kernels)
    found += _freed(program)
    return sorted(set(found))


def _by_function(program: ProgramModel) -> dict[Function, list[FunctionCall]]:
    found: dict[Function, list[FunctionCall]] = {}
    for call in program.calls:
        if call.function is not None:
            found.setdefault(call.function, []).append(call)
    return found


def _groups(functions: list[list[FunctionCall]]) -> list[Finding]:
    """Return groups that are not ended; another function that ends one it did not start may end them."""
    open_ones = [calls for calls in functions if _opened(calls) > 0]
    elsewhere = any(_opened(calls) < 0 for calls in functions)
    found: list[Finding] = []
    for calls in open_ones:
        start = [c for c in calls if c.name == "ncclGroupStart"][-1]
        text = "ncclGroupStart without ncclGroupEnd"
        if elsewhere:
            text = f"not understood: {text} in this function; another one ends a group that it did not start"
        found.append((note if elsewhere else error)("pairs", start.source, start.node, text))
    return found


def _opened(calls: list[FunctionCall]) -> int:
    return sum((c.name == "ncclGroupStart") - (c.name == "ncclGroupEnd") for c in calls)


def _always(calls: list[FunctionCall], *names: str) -> list[FunctionCall]:
    """Return the calls of some names that stand under no condition."""
    return [c for c in calls if c.name in names and enclosing(c.place, *BRANCHES) is None]


def _order(calls: list[FunctionCall]) -> list[Finding]:
    found: list[Finding] = []
    ends = _always(calls, *COMM_END)
    for late in _always(calls, "ncclCommWindowDeregister", "ncclDevCommDestroy"):
        first = next((e for e in ends if e.place.start_byte < late.place.start_byte and _same(e, late)), None)
        if first is not None:
            text = f"{late.name} after {first.name} (line {first.line}): the communicator is gone by then"
            found.append(error("pairs", late.source, late.node, text))
    bases = {_base(c.nodes[3], c): _base(c.nodes[1], c) for c in calls if c.name == PAIRS[0][0] and len(c.nodes) > 3}
    for late in _always(calls, "ncclCommWindowDeregister"):
        base = bases.get(_base(late.nodes[1], late)) if len(late.nodes) > 1 else None
        for free in _always(calls, "ncclMemFree", "cudaFree"):
            if (
                base
                and free.nodes
                and _base(free.nodes[0], free) == base
                and free.place.start_byte < late.place.start_byte
            ):
                text = f"{free.name}({base}) (line {free.line}) comes before its window is deregistered"
                found.append(error("pairs", late.source, late.node, text))
    return found


def _same(end: FunctionCall, late: FunctionCall) -> bool:
    """Say whether two calls are about the same communicator, as far as their texts tell."""
    return bool(end.nodes and late.nodes) and _base(end.nodes[0], end) == _base(late.nodes[0], late)


def _base(node: object, call: FunctionCall) -> str:
    return call.source.text_without_space(strip_casts(node))  # type: ignore[arg-type]


def _running(program: ProgramModel, calls: list[FunctionCall], kernels: dict[str, Function]) -> list[Finding]:
    """A device communicator must outlive the kernels that use it."""
    launches = [c for c in calls if (made := program.launch_of(c)) is not None and made.kernel in kernels]
    found: list[Finding] = []
    for destroy in [c for c in calls if c.name == "ncclDevCommDestroy"]:
        before = [c for c in launches if c.place.start_byte < destroy.place.start_byte]
        if not before:
            continue
        between = range(before[-1].place.start_byte, destroy.place.start_byte)
        around = _calls_around(before[-1])
        if not any(_waits(program, n) for n in around) and not any(
            _waits(program, c.name) and c.place.start_byte in between for c in calls
        ):
            text = (
                f"nothing waits between the launch in line {before[-1].line} and ncclDevCommDestroy: the kernel may run"
            )
            found.append(error("pairs", destroy.source, destroy.node, text))
    return found


def _calls_around(launch: FunctionCall) -> list[str]:
    """Return the functions that get a launch in a lambda."""
    found: list[str] = []
    node = enclosing(launch.place.parent, CALL)
    while node is not None:
        found.append(name_of(launch.source, node) if launch.source.path == launch.path else "")
        node = enclosing(node.parent, CALL)
    return found


def _waits(program: ProgramModel, name: str, depth: int = 3) -> bool:
    """Say whether a call waits for the device, itself or in what it calls."""
    if name in HOST_SYNCS or not depth:
        return name in HOST_SYNCS
    inside = {c.name for f in program.by_name.get(name, []) for c in program.calls_in(f.source, f.body)}
    return any(_waits(program, n, depth - 1) for n in inside - {name})


def _freed(program: ProgramModel) -> list[Finding]:
    """Memory of ncclMemAlloc goes back by ncclMemFree."""
    made = {(a.target, a.call.function) for a in allocations_of(program) if a.kind == "nccl"}
    other = {(a.target, a.call.function) for a in allocations_of(program) if a.kind != "nccl"}
    return [
        error(
            "pairs", c.source, c.node, f"cudaFree of {_base(c.nodes[0], c)}, which ncclMemAlloc made: use ncclMemFree"
        )
        for c in program.calls
        if c.name == "cudaFree" and c.nodes and (_base(c.nodes[0], c), c.function) in made - other
    ]
