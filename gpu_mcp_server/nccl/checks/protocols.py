"""Kernels that keep order by means of their own: fences of system scope, flags that are polled, instructions in asm.

A barrier session is then one part of a protocol that no rule here understands, so what rules say of it is no verdict.
"""

import re
from dataclasses import replace

from gpu_mcp_server.nccl.checks.findings import Finding
from gpu_mcp_server.nccl.program_model.functions import Function
from gpu_mcp_server.nccl.program_model.macros import Macro
from gpu_mcp_server.nccl.program_model.syntax import CALL, name_of, walk

DEPTH = 4
"""Device functions within device functions that are looked into."""
JUDGED = frozenset({"barriers", "divergence", "orders"})
OWN = re.compile(
    r"__threadfence_system|thread_scope_system|atomic_thread_fence\s*\(|cudaTriggerProgrammaticLaunchCompletion"
    r"|atomic\w+_system|(?:ld|st)_(?:acquire|release|relaxed|volatile)\w*"
    r"|\bfence\.(?:sc|acq_rel)|asm\s*(?:volatile)?\s*\(\s*\"[^\"]*(?:\.sys|multimem|red\.|\bld\.|\bst\.)"
    r"|\bvolatile\s+[\w:]+\s*\*|sentinel"
)
SIGNALS = re.compile(r"\b(?:waitSignal|waitCounter|readSignal)\b")
"""GIN's own flags: puts may be ordered by them, with barriers that order nothing."""


def demote_unsure_findings(
    kernel: Function, found: set[Finding], device: dict[str, Function], macros: dict[str, Macro]
) -> set[Finding]:
    """Return findings with those that a protocol of the kernel's own may answer turned into notes."""
    text = text_below(kernel, device, macros)
    own = OWN.search(text)
    signals = SIGNALS.search(text)
    softened: set[Finding] = set()
    for finding in found:
        if finding.severity == "error" and finding.rule in JUDGED and own is not None:
            softened.add(_not_understood(finding, f"beside `{own.group().strip()[:40]}`"))
        elif finding.severity == "error" and finding.rule == "orders" and signals is not None:
            softened.add(_not_understood(finding, f"beside signals (`{signals.group()}`)"))
        else:
            softened.add(finding)
    return softened


def text_below(function: Function, device: dict[str, Function], macros: dict[str, Macro], depth: int = DEPTH) -> str:
    """Return the text of a device function, of those that it calls, and of the macros in them."""
    source = function.source
    own = source.text(function.body)
    parts = [re.sub(r"//[^\n]*|/\*.*?(?:\*/|\Z)", " ", own, flags=re.DOTALL)]
    parts += [macros[word].body for word in set(re.findall(r"\b[A-Za-z_]\w+\b", own)) if word in macros]
    if depth:
        names = {name_of(source, n) for n in walk(function.body) if n.type == CALL}
        called = [device[n] for n in names if n in device and device[n] is not function]
        parts += [text_below(f, device, macros, depth - 1) for f in called]
    return "\n".join(parts)


def _not_understood(finding: Finding, where: str) -> Finding:
    text = finding.text.removesuffix(": it hangs")
    return replace(finding, severity="note", text=f"not understood: {text} ({where})")
