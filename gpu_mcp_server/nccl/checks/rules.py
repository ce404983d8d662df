"""All static rules over one program, in the order in which they are reported."""

from collections.abc import Mapping
from typing import get_args

from gpu_mcp_server.models.nccl_check import NcclCheck
from gpu_mcp_server.nccl.checks import (
    agreement,
    communication,
    frozen_text,
    grids,
    kernels,
    offsets,
    requirements,
    resource_lifetimes,
    self_check,
    signals,
    windows,
)
from gpu_mcp_server.nccl.checks.findings import Finding, Rule
from gpu_mcp_server.nccl.checks.pointer_helpers import inline_pointer_helpers
from gpu_mcp_server.nccl.checks.requirements import Version
from gpu_mcp_server.nccl.checks.streams import HostFlow
from gpu_mcp_server.nccl.program_model.functions import Function
from gpu_mcp_server.nccl.program_model.pointer_resolution import PointerResolver
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from gpu_mcp_server.nccl.program_model.trace import Trace

SHOWN = 4
"""Findings of one rule that are said; the rest is counted."""


def findings(
    program: ProgramModel,
    *,
    original: ProgramModel | None = None,
    before: Mapping[str, str] | None = None,
    header: Version | None = None,
) -> list[Finding]:
    """Return everything that static rules find.

    Args:
        program: What is checked.
        original: The program with host collectives, to compare communication with.
        before: The files of the stage's input, to compare frozen text with.
        header: NCCL's version on the host, as far as it is known.
    """
    files = {path: s.data.decode("utf-8", "surrogateescape") for path, s in program.sources.items()}
    communicating = kernels.communicating(program)
    found = kernels.findings(program)
    found += grids.findings(program, communicating)
    found += windows.findings(program)
    found += resource_lifetimes.findings(program, communicating)
    found += requirements.findings(program, communicating, header)
    found += communication.findings(program, communicating, original)
    inlined = inline_pointer_helpers(program)
    own = agreement.own_program(inlined)
    trace = Trace(own)
    places = PointerResolver(own, trace)
    found += agreement.findings(trace, places, communicating)
    found += HostFlow(trace, places, kernels.communicating(inlined)).findings()
    found += offsets.findings(inlined)
    found += signals.findings(program)
    found += frozen_text.marker_findings(files)
    found += frozen_text.infrastructure_findings(files)
    found += frozen_text.findings(before, files) if before is not None else []
    found += self_check.findings(program, original)
    generated = {f for f in found if f.severity == "note" and f.path.rpartition("/")[2] in communication.GENERATED}
    return sorted(set(found) - generated)


def checks(program: ProgramModel, found: list[Finding], *, compared: bool, frozen: bool) -> list[NcclCheck]:
    """Return one check a rule, each with what it looked at or what it found.

    Args:
        program: What was checked.
        found: What `findings` returned.
        compared: Whether there was an original.
        frozen: Whether there was a stage's input.
    """
    communicating = kernels.communicating(program)
    made: list[NcclCheck] = []
    for rule in get_args(Rule):
        own = [f for f in found if f.rule == rule]
        errors = [f for f in own if f.severity == "error"]
        if errors:
            made.append(NcclCheck(name=rule, status="failed", evidence=_said(errors)))
        elif own:
            made.append(NcclCheck(name=rule, status="noted", evidence=_said(own)))
        elif rule == "frozen text" and not frozen:
            made.append(NcclCheck(name=rule, status="skipped", evidence="no input of the stage was given as `before`"))
        else:
            made.append(NcclCheck(name=rule, status="passed", evidence=_looked(rule, program, communicating, compared)))
    return made


def _said(found: list[Finding]) -> str:
    lines = [f"{f.path}:{f.line}: {f.text}" for f in found[:SHOWN]]
    return "; ".join(lines) + (f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else "")


def _looked(rule: Rule, program: ProgramModel, communicating: dict[str, Function], compared: bool) -> str:
    names = ", ".join(communicating) or "no kernel communicates"
    calls = [c.name for c in program.calls]
    match rule:
        case "barriers" | "divergence" | "orders":
            return names
        case "barrier count":
            return f"{sum(launch.kernel in communicating for launch in program.launches)} launches"
        case "windows":
            return f"{calls.count('ncclCommWindowRegister')} windows"
        case "pairs":
            return (
                f"{calls.count('ncclDevCommCreate')} device communicators, {calls.count('ncclMemAlloc')} ncclMemAlloc"
            )
        case "requirements":
            return f"{calls.count('ncclDevCommCreate')} ncclDevCommCreate"
        case "collectives":
            sites = communication.sites_of(program, communicating)
            counted = {k: sum(s.kind == k for s in sites) for k in ("host", "wrapper", "kernel")}
            how = "as in the original" if compared else "nothing to compare with"
            return ", ".join(f"{n} {k}" for k, n in counted.items()) + f" sites; {how}"
        case "agreement":
            return "no call, size or launch that ranks must share depends on the rank, as far as the text tells"
        case "signals":
            return "puts by GIN with signals, where there are any"
        case "offsets":
            return "offsets, slots and sizes of windows, as far as they are products of names"
        case "streams":
            return "what a communicating kernel's neighbours on other streams wait for"
        case "frozen text":
            return "unchanged"
        case "verification text":
            return "success is printed under a computed condition, or not at all"
