"""Offsets and sizes: bytes where bytes are asked for, a slot for each rank, windows as large as their memory."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from gpu_mcp_server.nccl.checks import window_sizes
from gpu_mcp_server.nccl.checks.expansion import expand_variables, factors_of, summands_of, words_of
from gpu_mcp_server.nccl.checks.findings import Finding, error, note
from gpu_mcp_server.nccl.checks.protocols import OWN
from gpu_mcp_server.nccl.program_model.functions import Function, declared_identifier
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from gpu_mcp_server.nccl.program_model.syntax import (
    CALL,
    ParsedSource,
    arguments,
    enclosing,
    field,
    is_cast,
    name_of,
    receiver_of,
    walk,
)

LSA, LOCAL = "ncclGetLsaPointer", "ncclGetLocalPointer"
BYTE_OFFSETS = {LSA: 1, LOCAL: 1, "ncclGetPeerPointer": 1}
"""Function: the argument that is an offset in bytes."""
_BYTES = re.compile(r"byte|off|size|stride|pitch|part|chunk|len", re.IGNORECASE)
_NUMBER = re.compile(r"(?:std::)?(?:unsigned|signed|long|int|size_t|ssize_t|ptrdiff_t|u?int\d+_t|\s)+")
_TABLE = re.compile(r"\(\*.*\)(?:\.|->)\w+|\[[^\[\]]*\]|\b\w+\)*(?:\.|->)")
"""Words that are no rank's number: loaded values, indices, and objects with members."""
_RANK = re.compile(r"(?:\.|->)(?:lsaRank|rank)\b")


AROUND_POINTERS = frozenset({"cast_expression", "parenthesized_expression", "binary_expression", "argument_list"})


@dataclass(frozen=True)
class Transfer:
    """One element, or one put, between a peer's window and an own one: where in each, as expanded texts."""

    node: Node
    remote_window: str
    remote_offset: str
    own_window: str
    own_offset: str
    peers: frozenset[str]
    peer: str
    """The peer's expression."""
    is_pull: bool = False

    @property
    def to_window(self) -> str:
        """The window that is written."""
        return self.own_window if self.is_pull else self.remote_window

    @property
    def from_window(self) -> str:
        """The window that is read."""
        return self.remote_window if self.is_pull else self.own_window


def findings(program: ProgramModel) -> list[Finding]:
    """Return offsets, slots and sizes that are wrong as far as products of names tell."""
    found: list[Finding] = []
    for kernel in program.kernels.values():
        if OWN.search(kernel.source.text(kernel.body)):
            continue
        found += _units(program, kernel)
        found += _teams(kernel)
        for transfer in transfers_of(kernel):
            found += _slots(kernel, transfer)
    return sorted(set(found + window_sizes.findings(program)))


def transfers_of(kernel: Function) -> Iterator[Transfer]:
    """Yield the puts of a kernel, and what it stores into peers' windows or loads from them."""
    source = kernel.source
    for node in walk(kernel.body):
        if node.type == CALL and name_of(source, node) == "put" and receiver_of(source, node):
            given = arguments(node)
            if len(given) > 6:
                peers = frozenset(words_of(source.text(given[1])))
                texts = [expand_variables(source, g, peers) for g in given[2:6]]
                peer = expand_variables(source, given[1])
                yield Transfer(node, texts[0], texts[1], texts[2], texts[3], peers, peer)
        elif node.type == "assignment_expression":
            made = _store(source, node)
            if made is not None:
                yield made


def _store(source: ParsedSource, node: Node) -> Transfer | None:
    left, right = field(node, "left"), field(node, "right")
    if left is None or right is None or left.type != "subscript_expression":
        return None
    is_pull = _pointer_call(source, left, LSA) is None or _own_call(source, left) is not None
    remote, own = (right, left) if is_pull else (left, right)
    peer_call, local_call = _pointer_call(source, remote, LSA), _own_call(source, own)
    if peer_call is None or local_call is None or len(arguments(peer_call)) < 3 or len(arguments(local_call)) < 2:
        return None
    there, here = arguments(peer_call), arguments(local_call)
    peers = frozenset(words_of(source.text(there[2])) - words_of("lsaRank lsaSize"))
    index = field(remote, "indices") if remote.type == "subscript_expression" else None
    offset = expand_variables(source, there[1], peers) + "+"
    offset += expand_variables(source, index, peers) if index is not None else ""
    offset += _added(source, peer_call, peers)
    windows = source.text(there[0]), source.text(here[0])
    peer, own_offset = expand_variables(source, there[2]), expand_variables(source, own, peers)
    return Transfer(node, windows[0], offset, windows[1], own_offset, peers, peer, is_pull)


def _own_call(source: ParsedSource, node: Node) -> Node | None:
    """Return the call that made a pointer into the own window: a local one, or the team's for the own rank."""
    call = _pointer_call(source, node, LSA)
    given = arguments(call) if call is not None else []
    is_own = len(given) > 2 and re.fullmatch(r"\(*\w+(?:\.|->)lsaRank\)*", expand_variables(source, given[2]))
    return call if is_own else _pointer_call(source, node, LOCAL)


def _added(source: ParsedSource, call: Node, peers: frozenset[str]) -> str:
    """Return what is added to a pointer behind the call that makes it: `+ rank * count`."""
    found = ""
    node = call.parent
    while node is not None and (node.type in AROUND_POINTERS or (node.type == CALL and is_cast(node))):
        right = field(node, "right") if node.type == "binary_expression" else None
        found += f"+{expand_variables(source, right, peers)}" if right is not None else ""
        node = node.parent
    return found


def _pointer_call(source: ParsedSource, node: Node, name: str) -> Node | None:
    """Return the call that made the pointer which an expression goes through."""
    for inner in walk(node):
        if inner.type == CALL and name_of(source, inner) == name:
            return inner
        if inner.type == "identifier":
            made = _declared(source, inner)
            call = (
                next((c for c in walk(made) if c.type == CALL and name_of(source, c) == name), None) if made else None
            )
            if call is not None:
                return call
    return None


def _declared(source: ParsedSource, name: Node) -> Node | None:
    body = enclosing(name, "function_definition")
    for node in walk(body) if body is not None else ():
        if node.type == "init_declarator" and node.start_byte < name.start_byte:
            declared = declared_identifier(field(node, "declarator"))
            if declared is not None and source.text(declared) == source.text(name):
                return node
    return None


def _slots(kernel: Function, transfer: Transfer) -> list[Finding]:
    """In an exchange the own rank's slot on a peer belongs to the peer's slot here, whoever moves the data."""
    peers, source = transfer.peers, kernel.source
    if words_of(transfer.remote_offset) & peers and not words_of(_TABLE.sub("", transfer.remote_offset)) & peers:
        return _left_out(kernel, transfer)  # a table of peers says where: whose place that is cannot be told
    there_peer, there_rank = words_of(transfer.remote_offset) & peers, _RANK.search(transfer.remote_offset)
    here_peer, here_rank = words_of(transfer.own_offset) & peers, _RANK.search(transfer.own_offset)
    apart = transfer.remote_window != transfer.own_window
    text = ""
    if there_peer and there_rank is None and not transfer.is_pull:
        text = "the place in a peer's window follows from the peer, not from the own rank: all ranks write to one place"
    elif there_peer and there_rank is None and apart:
        text = "the loaded data lies at the peer's own place of its window: every rank gets the same of it"
    elif here_rank is not None and not here_peer and transfer.is_pull and next(_peer_loops(source, transfer), None):
        text = "data loaded from each peer is written to the own rank's place: the last peer's stays"
    elif there_rank is not None and here_rank is not None and not here_peer and apart:
        text = "the sent data lies at the own rank's place and is the same for every peer, in a window of its own"
    if text:
        return [error("offsets", source, transfer.node, f"{kernel.name}: {text}")]
    return _left_out(kernel, transfer)


def _peer_loops(source: ParsedSource, transfer: Transfer) -> Iterator[Node]:
    """Yield the loops whose variables the peer follows from."""
    loop = enclosing(transfer.node, "for_statement")
    while loop is not None:
        start = field(loop, "initializer")
        first = re.search(r"(\w+)\s*=[^=]", source.text(start)) if start is not None else None
        if first is not None and first.group(1) in words_of(transfer.peer):
            yield loop
        loop = enclosing(loop.parent, "for_statement")


def _left_out(kernel: Function, transfer: Transfer) -> list[Finding]:
    """A loop over peers that begins at 1 leaves the own block out, which nothing else copies."""
    source = kernel.source
    loop = enclosing(transfer.node, "for_statement")
    while loop is not None:
        start, condition = field(loop, "initializer"), field(loop, "condition")
        first = re.search(r"(\w+)=1;?$", source.text_without_space(start)) if start is not None else None
        ends = expand_variables(source, condition) if condition is not None else ""
        if first and not transfer.is_pull and re.search(r"lsaSize|nRanks", ends) and _are_apart(transfer):
            text = source.text(kernel.body)
            if not re.search(rf"{LOCAL}\s*\(\s*{re.escape(transfer.to_window)}\b", text):
                said = f"the loop over peers begins at 1: the own block of {transfer.to_window} is never written"
                return [error("offsets", source, loop, f"{kernel.name}: {said}")]
        loop = enclosing(loop.parent, "for_statement")
    short = _short_while(kernel, transfer)
    if short is not None:
        said = "the loop over peers ends before the last one: it gets nothing"
        return [error("offsets", source, short, f"{kernel.name}: {said}")]
    for loop in _peer_loops(source, transfer):
        said = _wrong_end(source, loop, transfer)
        if said:
            return [error("offsets", source, loop, f"{kernel.name}: {said}")]
    return []


def _short_while(kernel: Function, transfer: Transfer) -> Node | None:
    """Return the `while` that takes turns over peers from 0 and ends before the last."""
    source = kernel.source
    loop = enclosing(transfer.node, "while_statement")
    condition = field(loop, "condition") if loop is not None else None
    ends = expand_variables(source, condition) if condition is not None else ""
    bound = re.fullmatch(r"\(*(\w+)<\(*[\w.>-]*(?:lsaSize|nRanks)\)*-[1-9]\d*\)*", ends)
    if bound is None or "%" not in transfer.peer or bound.group(1) not in words_of(transfer.peer):
        return None
    starts_at_0 = re.search(rf"\b{bound.group(1)}\s*=\s*0\b", source.text(kernel.body))
    return loop if starts_at_0 and not re.search(r"[+-]1\b", transfer.peer) else None


def _are_apart(transfer: Transfer) -> bool:
    return transfer.remote_window != transfer.own_window


def _wrong_end(source: ParsedSource, loop: Node, transfer: Transfer) -> str:
    """Say whether a loop over peers that starts with the first ends before the last, or behind it."""
    start, condition = field(loop, "initializer"), field(loop, "condition")
    first = re.search(r"(\w+)\s*=\s*(?:0|threadIdx\.x)\s*;?$", source.text(start)) if start is not None else None
    ends = expand_variables(source, condition) if condition is not None else ""
    if first is None:
        return ""
    is_all = transfer.peers == frozenset({first.group(1)}) or transfer.peer.strip("()") == first.group(1)
    is_turned = "%" in transfer.peer and re.search(r"\+1\b|\b1\+", transfer.peer) is None
    if (is_all or is_turned) and re.search(r"(?:lsaSize|nRanks)\)*-\d", ends):
        return "the loop over peers ends before the last one: it gets nothing"
    if is_all and re.search(r"<=\(*[\w.>-]*(?:lsaSize|nRanks)\)*$", ends):
        return "the loop over peers goes one beyond the last: there is no such rank"
    return ""


def _units(program: ProgramModel, kernel: Function) -> list[Finding]:
    """Return offsets and sizes in bytes that are made of numbers of elements."""
    source = kernel.source
    elements = _element_counts(kernel) | element_counts_of_callers(program, kernel)
    found: list[Finding] = []
    for node in walk(kernel.body):
        if node.type != CALL:
            continue
        name, given = name_of(source, node), arguments(node)
        which: tuple[int, ...] = (BYTE_OFFSETS[name],) if name in BYTE_OFFSETS else ()
        if name == "put" and receiver_of(source, node) and len(given) > 6:
            which = (3, 5, 6)
        for number in which:
            text = expand_variables(source, given[number]) if number < len(given) else ""
            if any(_counts_elements(term, elements) for term in summands_of(text)):
                what = "a size" if number == 6 else "an offset"
                said = f"{name}: {what} in bytes is `{source.text(given[number])}`, which counts elements"
                found.append(error("offsets", source, node, f"{kernel.name}: {said}"))
        if len(which) == 3 and "gridDim" in expand_variables(source, given[6]):
            lost = [n for n in (3, 5) if "blockIdx" not in expand_variables(source, given[n])]
            if lost:
                said = (
                    f"put: each block puts its share, and the offset `{source.text(given[lost[0]])}` is no block's own"
                )
                found.append(error("offsets", source, node, f"{kernel.name}: {said}"))
    return found


def _counts_elements(term: str, elements: set[str]) -> bool:
    """Say whether a summand is a number of elements that nothing turns into bytes."""
    return bool(words_of(term) & elements) and "sizeof" not in term and not re.search(r"\*\d|<<\d|\d\*", term)


def _element_counts(kernel: Function) -> set[str]:
    """Return parameters that bound a loop over elements or are multiplied by sizeof: they count elements."""
    source = kernel.source
    plain = [p for p in kernel.parameters if p.name and not p.is_pointer and _NUMBER.fullmatch(p.type_text)]
    numbers = {p.name for p in plain if not _BYTES.search(p.name)}
    found: set[str] = set()
    for node in walk(kernel.body):
        if node.type == "subscript_expression":
            index = field(node, "indices")
            found |= words_of(expand_variables(source, index)) & numbers if index is not None else set()
        elif node.type == "binary_expression" and "sizeof" in source.text(node):
            found |= words_of(source.text(node)) & numbers
            product = factors_of(source.text_without_space(node))
            found |= {p.name for p in plain} & set(product or ())
        elif node.type == "for_statement":
            condition = field(node, "condition")
            found |= words_of(source.text(condition)) & numbers if condition is not None else set()
    return found


def element_counts_of_callers(program: ProgramModel, kernel: Function) -> set[str]:
    """Return parameters, and members of those, that the function which launches a kernel multiplies by sizeof."""
    found: set[str] = set()
    for launch in (x for x in program.launches if x.kernel == kernel.name):
        around = enclosing(launch.node, "function_definition")
        text = launch.source.text(around) if around is not None else ""
        products = " ".join(re.findall(r"[\w.>*\s-]*\*\s*sizeof\b|sizeof\s*(?:\([^()]*\)|\w+)\s*\*[\w.>*\s-]*", text))
        products += " " + " ".join(
            m for w in words_of(products) for m in re.findall(rf"\b{w}\s*=\s*([\w\s*]+)[,;]", text)
        )
        for parameter, node in zip(kernel.parameters, launch.nodes, strict=False):
            given = launch.source.text(node)
            if parameter.is_pointer or not re.fullmatch(r"\w+", given):
                continue
            if _NUMBER.fullmatch(parameter.type_text) and re.search(rf"(?<![.\w>]){given}\b(?!\.)", products):
                found.add(parameter.name)
            found |= set(re.findall(rf"\b{given}\.(\w+)", products))
    return found


def _teams(kernel: Function) -> list[Finding]:
    """Return pointers of the LSA team for ranks of the world, and puts to a team with another's ranks."""
    source = kernel.source
    found: list[Finding] = []
    for node in walk(kernel.body):
        given = arguments(node) if node.type == CALL else []
        name = name_of(source, node) if given else ""
        if name == LSA and len(given) > 2:
            text = _peer_text(source, given[2])
            if re.search(r"\bnRanks\b", text) and not re.search(r"lsaSize|Team(?:Tag)?Lsa|lsa_?[Tt]eam", text):
                said = "a pointer of the LSA team for one of nRanks ranks: right only where lsaSize is nRanks"
                found.append(note("offsets", source, node, f"{kernel.name}: {said}"))
            elif re.search(r"(?:\.|->)rank\b", text) and "lsaSize" in text:
                said = "a pointer of the LSA team for a peer made of the world's rank: right only in one team"
                found.append(note("offsets", source, node, f"{kernel.name}: {said}"))
        elif name == "put" and receiver_of(source, node) and len(given) > 6:
            team, text = expand_variables(source, given[0]), _peer_text(source, given[1])
            small = re.search(r"ncclTeam(?:Tag)?(Lsa|Rail)", team)
            if small and "ncclTeamWorld" in text and small.group(0) not in text:
                said = f"puts to ranks of the {small.group(1)} team, numbered as in the world"
                found.append(error("offsets", source, node, f"{kernel.name}: {said}"))
    return found


def _peer_text(source: ParsedSource, node: Node) -> str:
    """Return a peer's expression with the bounds of the loops that its variables run over."""
    text = expand_variables(source, node)
    loop = enclosing(node, "for_statement")
    while loop is not None:
        condition = field(loop, "condition")
        bounds = expand_variables(source, condition) if condition is not None else ""
        if words_of(bounds) & words_of(text):
            text += " " + bounds
        loop = enclosing(loop.parent, "for_statement")
    return text
