"""Check the requirements given to ncclDevCommCreate, and that its result is looked at."""

import re

from gpu_mcp_server.nccl.checks.findings import Finding, error, note
from gpu_mcp_server.nccl.program_model.functions import Function
from gpu_mcp_server.nccl.program_model.program import FunctionCall, ProgramModel
from gpu_mcp_server.nccl.program_model.syntax import strip_casts

INITIALIZER = "NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER"
FIRST_DEVICE_API = (2, 28, 3)
FIRST_CHECKED = (2, 29, 2)
"""From then on structs carry size and magic, and what was only zeroed is refused. Source: nccl.h of both versions."""
Version = tuple[int, int, int]


def findings(program: ProgramModel, kernels: dict[str, Function], header: Version | None) -> list[Finding]:
    """Return requirements that this version of NCCL refuses, or that are not initialised at all.

    Args:
        program: The program.
        kernels: Its kernels that communicate.
        header: NCCL's version, as far as it is known.
    """
    found: list[Finding] = []
    everything = "\n".join(s.data.decode("utf-8", "replace") for s in program.sources.values())
    creates = [c for c in program.calls if c.name == "ncclDevCommCreate"]
    for call in creates:
        if INITIALIZER in everything:
            break
        found += _zeroed(call, everything, header)
    if header is not None and header < FIRST_DEVICE_API and (creates or kernels):
        place = creates[0] if creates else None
        text = f"the device interface begins with NCCL {_said(FIRST_DEVICE_API)}, this is {_said(header)}"
        if place is not None:
            found.append(error("requirements", place.source, place.node, text))
    if creates and "lsaSize" not in everything and any("Lsa" in k.source.text(k.body) for k in kernels.values()):
        text = "nothing looks at lsaSize: where not all ranks are in one LSA team, some would be left out silently"
        found.append(note("requirements", creates[0].source, creates[0].node, text))
    return sorted(set(found))


def _zeroed(call: FunctionCall, everything: str, header: Version | None) -> list[Finding]:
    name = call.source.text(strip_casts(call.nodes[1])) if len(call.nodes) > 1 else ""
    if call.function is not None and name in {p.name for p in call.function.parameters}:
        return [note("requirements", call.source, call.node, f"{name} comes from a caller: how it is made is not seen")]
    zero = re.search(rf"memset\s*\(\s*&?\s*{re.escape(name)}\b|\b{re.escape(name)}\s*(?:=\s*)?\{{", everything)
    if name and not zero and re.fullmatch(r"\w+", name):
        text = f"{name} is neither zeroed nor made by {INITIALIZER}: its fields are whatever lay there"
        return [error("requirements", call.source, call.node, text)]
    text = f"{name} is not made by {INITIALIZER}, which NCCL {_said(FIRST_CHECKED)} and later demand"
    if header is None or header < FIRST_CHECKED:
        return [note("requirements", call.source, call.node, text)]
    return [error("requirements", call.source, call.node, f"{text}; this is {_said(header)}")]


def _said(version: Version) -> str:
    return ".".join(map(str, version))
