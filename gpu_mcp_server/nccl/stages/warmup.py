"""A warm-up before timed collectives that have none: a first call costs up to 100 times a later one."""

import re

from gpu_mcp_server.nccl.analysis.communication_graph import Analysis, CallSite
from gpu_mcp_server.nccl.stages.error_macros import ErrorMacros
from gpu_mcp_server.nccl.stages.infrastructure import EditedFiles, insert_before
from gpu_mcp_server.nccl.stages.warmup_location import NoWarmUpLocation, WarmUpLocation, find_location

SAID = "// ncclx warm-up: connections are made and kernels loaded before the clock starts"


def warm_up(analysis: Analysis, files: EditedFiles) -> tuple[list[str], list[str]]:
    """Repeat timed collectives once ahead of the clock, and return what was done and what the agent must do."""
    done: list[str] = []
    left: list[str] = []
    warmed: set[tuple[str, int, str]] = set()
    for site in analysis.sites:
        if site.phase != "timed" or _has_warm_up(analysis, site):
            continue
        where = f"{site.call.name} at {site.call.path}:{site.call.line}"
        unsafe = _unsafe(site)
        if unsafe is not None:
            left.append(f"{where} {unsafe}: warm another registered buffer")
            continue
        try:
            location = find_location(analysis, site)
        except NoWarmUpLocation as refusal:
            left.append(
                f"{where}: no place for a warm-up runs once; {refusal}. Add one by hand, ahead of loops and clock"
            )
            continue
        key = (location.source.path, location.before.start_byte, location.text)
        if key not in warmed:
            warmed.add(key)
            _insert(analysis, files, site, location)
            each = f" in each iteration of {location.each}, which sets up again" if location.each else ""
            done.append(
                f"{where} runs once before {location.source.path}:{location.source.line(location.before)}{each}"
            )
    return done, left


def _insert(analysis: Analysis, files: EditedFiles, site: CallSite, location: WarmUpLocation) -> None:
    text, wait = location.text, f"(void)cudaStreamSynchronize({location.stream});"
    if location.is_written_out:
        text = ErrorMacros(analysis.program, location.source.path).statement(text)
    else:
        wait = _wait(site)
    edits = files.edits_of(location.source.path)
    insert_before(edits, location.before, [SAID, text, wait], edits.indent(location.before))


def _unsafe(site: CallSite) -> str | None:
    """Return why a first call ahead of the program's own would change what the program computes."""
    if site.in_place:
        return "works in place, so a warm-up would change its data"
    if site.may_share:
        return "may receive where it sends from, so a warm-up would change its data"
    received = site.buffer("recv")
    early = [p for p in received.partners if p.is_carried] if received is not None else []
    if early:
        return f"fills a buffer that {early[0].text()} reads first, so a warm-up would change what it reads"
    return None


def _has_warm_up(analysis: Analysis, site: CallSite) -> bool:
    others = [s for s in analysis.sites if s.phase == "warm-up"]
    source = analysis.program.sources.get(site.call.path)
    said = source is not None and SAID.encode() in source.data
    return site.is_warmed or said or any(s.call.name == site.call.name for s in others)


def _wait(site: CallSite) -> str:
    stream = site.argument("stream") or "0"
    for loop in reversed(site.event.loops):
        match = re.match(r"for\s*\(\s*(?:[\w:]+\s+)+(\w+)\s*=", loop.header)
        if match and re.search(rf"\b{match.group(1)}\b", stream):
            return f"{loop.header} (void)cudaStreamSynchronize({stream});"
    return f"(void)cudaStreamSynchronize({stream});"
