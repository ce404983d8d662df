"""Suggestions of ncu's own rules, by the topic that they are about; global and local ones.

Source: rule names and texts of ncu 2025.3.1. A global estimate is of the kernel's time; a local one is only of its
section's own measure, so it counts half.
"""

from collections.abc import Iterator, Mapping, Sequence

from gpu_mcp_server.models.profile import Rule
from gpu_mcp_server.profilers.guide_links import link_guide

NOISE = (
    "MemoryL2Compression",
    "SOLFPRoofline",
    "SOLBottleneck",
    "CPIStall",
    "IssueSlotUtilization",
    "HighPipeUtilization",
    "AchievedOccupancy",
    "OtherImbalance",
    "TailEffect",
    "LaunchConfiguration",
)
"""Rules whose estimates do not come from anything that can be changed there, or whose counts `advice` weighs."""
TOPICS: Mapping[str, tuple[str, str]] = {
    # part of a rule's name: topic, what to do
    "UncoalescedGlobal": ("coalesce", "coalesce global accesses"),
    "MemoryCacheAccessPattern": ("coalesce", "coalesce global accesses"),
    "UncoalescedShared": ("conflicts", "remove bank conflicts: pad rows, or swizzle"),
    "SharedMemoryConflicts": ("conflicts", "remove bank conflicts: pad rows, or swizzle"),
    "Spill": ("spills", "stop the spills to local memory: launch bounds, fewer values alive"),
    "LocalMemory": ("spills", "stop the spills to local memory: launch bounds, fewer values alive"),
    "Divergence": ("divergence", "give the threads of a warp the same branch"),
    "Imbalance": ("imbalance", "balance the work between SMs"),
    "Atomic": ("atomics", "privatize, then one atomic for each block and address"),
    "TheoreticalOccupancy": ("occupancy limit", "remove what limits occupancy"),
}
WORTH_PERCENT = 2.0
"""Below this a suggestion is not worth saying."""


def rule_suggestions(rules: Sequence[Rule]) -> Iterator[tuple[str, float, str]]:
    """Return topic, weight and text of each rule that says what to do."""
    for rule in rules:
        gain = rule.speedup_percent
        if rule.kind != "OPT" or rule.name in NOISE or gain is None or gain < WORTH_PERCENT:
            continue
        known = next((v for part, v in TOPICS.items() if part in rule.name), None)
        weight = gain / 100 * (1.0 if rule.scope == "global" else 0.5)
        estimate = f"ncu: {gain:.0f} %" if rule.scope == "global" else f"ncu: {gain:.0f} % of that part"
        if known is not None:
            topic, text = known
            name = "occupancy" if topic == "occupancy limit" else topic
            yield name, weight, link_guide(f"{text}: {_sentence(rule.text)} ({estimate})", topic)
        elif rule.scope == "global":
            yield f"rule {rule.name}", 0.8 * weight, link_guide(f"{_sentence(rule.text)} ({estimate})", "counters")


def _sentence(text: str) -> str:
    first = text.split(". ", 1)[0].strip().rstrip(".")
    return first if len(first) <= 150 else first[:147] + "..."
