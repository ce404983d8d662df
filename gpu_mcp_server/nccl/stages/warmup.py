"""A warm-up before timed collectives that have none: a first call costs up to 100 times a later one."""

import re

from tree_sitter import Node

from gpu_mcp_server.nccl.analysis.communication_graph import Analysis, CallSite
from gpu_mcp_server.nccl.program_model.scopes import declaration_of
from gpu_mcp_server.nccl.program_model.syntax import ParsedSource, enclosing, statement_of, walk
from gpu_mcp_server.nccl.stages.evolve_markers import region
from gpu_mcp_server.nccl.stages.infrastructure import EditedFiles, insert_before

SAID = "// ncclx warm-up: connections are made and kernels loaded before the clock starts"


def warm_up(analysis: Analysis, files: EditedFiles) -> tuple[list[str], list[str]]:
    """Repeat timed collectives once ahead of the clock, and return what was done and what the agent must do."""
    done: list[str] = []
    left: list[str] = []
    warmed: set[tuple[str, int]] = set()
    for site in analysis.sites:
        if site.phase != "timed" or _has_warm_up(analysis, site):
            continue
        where = f"{site.call.name} at {site.call.path}:{site.call.line}"
        if site.in_place:
            left.append(f"{where} works in place, so a warm-up would change its data: warm another registered buffer")
            continue
        outer = _callers_loop(analysis, site)
        if outer is not None:
            left.append(
                f"{where} runs in a loop of its callers ({outer}), where a warm-up would run in every iteration: "
                "call it once before that loop and its clock"
            )
            continue
        source = analysis.program.sources[site.call.path]
        first, last = region(source, site.call)
        before = _before_clock(analysis, site, first)
        if before is None or not _is_known(source, first, last, before):
            left.append(f"{where}: its arguments are not known before the clock starts; add a warm-up by hand")
            continue
        key = (source.path, first.start_byte)
        if key in warmed:
            continue
        warmed.add(key)
        text = source.data[first.start_byte : last.end_byte].decode("utf-8", "surrogateescape")
        edits = files.edits_of(source.path)
        insert_before(edits, before, [SAID, text, _wait(site)], edits.indent(before))
        done.append(f"{where} runs once before {source.path}:{source.line(before)}")
    return done, left


def _callers_loop(analysis: Analysis, site: CallSite) -> str | None:
    """Return the header of a loop around a call of the site's function, in a caller that has the clock."""
    clocks = {id(e.frame) for e in analysis.events("timer", "order")}
    outer = [loop for e in site.events for loop in e.loops if loop.key[2] != id(e.frame)]
    return next((loop.header for loop in outer if loop.key[2] in clocks), None)


def _has_warm_up(analysis: Analysis, site: CallSite) -> bool:
    others = [s for s in analysis.sites if s.phase == "warm-up"]
    source = analysis.program.sources.get(site.call.path)
    said = source is not None and SAID.encode() in source.data
    return said or any(s.call.name == site.call.name for s in others)


def _before_clock(analysis: Analysis, site: CallSite, first: Node) -> Node | None:
    """Return the statement before which the clock has not started: the timer's, or the outermost loop around both."""
    function = site.event.frame.function
    if function is None:
        return None
    timers = [e for e in analysis.events("timer", "order") if e.frame is site.event.frame and e.call is not None]
    early = [e for e in timers if e.number < site.event.number and e.call is not None]
    starts = [statement_of(e.call.place) for e in early if e.call is not None and e.call.path == function.source.path]
    node = statement_of(first)
    while True:
        beside = [s for s in starts if s.parent == node.parent and s.start_byte < node.start_byte]
        if beside:
            return min(beside, key=lambda s: s.start_byte)
        loop = enclosing(node.parent, "for_statement", "while_statement", "do_statement")
        if loop is None or loop.start_byte <= function.body.start_byte:
            return node
        node = statement_of(loop)


def _is_known(source: ParsedSource, first: Node, last: Node, before: Node) -> bool:
    """Say whether everything that a statement names is declared before another place."""
    for statement in _between(first, last):
        for node in walk(statement):
            if node.type != "identifier":
                continue
            made = declaration_of(source, node)
            if made is None:
                continue
            inside = first.start_byte <= made.declarator.start_byte < last.end_byte
            if made.declarator.start_byte >= before.start_byte and not inside:
                return False
    return True


def _between(first: Node, last: Node) -> list[Node]:
    found = [first]
    while found[-1] != last:
        following = found[-1].next_named_sibling
        if following is None:
            break
        found.append(following)
    return found


def _wait(site: CallSite) -> str:
    stream = site.argument("stream") or "0"
    for loop in reversed(site.event.loops):
        match = re.match(r"for\s*\(\s*(?:[\w:]+\s+)+(\w+)\s*=", loop.header)
        if match and re.search(rf"\b{match.group(1)}\b", stream):
            return f"{loop.header} (void)cudaStreamSynchronize({stream});"
    return f"(void)cudaStreamSynchronize({stream});"
