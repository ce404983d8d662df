"""Suggest a first step: each suggestion rests on a count that tells its cause from others, and links our guide.

A busy unit alone names no cause: the load/store unit is full of spills, of bank conflicts or of a product's operands,
and what helps against one makes another worse. So causes that were counted come first, by the part of the time that
they may cost; a unit's general help comes when they are ruled out, and says which counts are missing.

Weights are rules of thumb, judged by the textbook profiles of tests/profilers/data/textbook.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gpu_mcp_server.models.profile import KernelReading
from gpu_mcp_server.profilers import access_counters as counted
from gpu_mcp_server.profilers.guide_links import UNIT_LINKS, link_guide
from gpu_mcp_server.profilers.hardware_units import BUSY_PERCENT, HELP, STALL_HELP
from gpu_mcp_server.profilers.ncu_rules import rule_suggestions

MOST = 3
SHORT_US = 10.0
"""Kernels below this are as long as their launches. Source: our guide on launch overhead."""
FULL = 0.9
SPILLS = 0.02
"""Part of loads and stores that are local from which registers are too few already."""
LEAST_UNEVEN = 0.15
"""Part of the time that SMs idle beyond what the last wave explains."""
MEMORY_STALLS = ("long_scoreboard", "lg_throttle", "drain")
SHARED_STALLS = ("short_scoreboard", "mio_throttle")
LIMITERS: Mapping[str, tuple[str, str]] = {
    "registers": ("launch__occupancy_limit_registers", "fewer registers a thread: launch bounds, shorter live ranges"),
    "shared memory": ("launch__occupancy_limit_shared_mem", "less shared memory a block: smaller tiles, fewer stages"),
    "warps": ("launch__occupancy_limit_warps", ""),
    "blocks": ("launch__occupancy_limit_blocks", "larger blocks: 128 or 256 threads"),
    "barriers": ("launch__occupancy_limit_barriers", "fewer named barriers a block"),
}
NOT_ENOUGH = "not enough counters to advise: level full has them"
NOT_ENOUGH_AMD = "not enough counters to advise: a report of rocprof-compute has them"
AMD_HELP = {
    "VGPRs": "fewer registers a thread: __launch_bounds__, shorter live ranges; look at AccVGPRs and spills",
    "SGPRs": "fewer scalar registers: fewer uniform values alive",
    "LDS": "less LDS a workgroup: smaller tiles, fewer stages",
    "barriers": "fewer, larger workgroups",
}
AMD_TOOLS = ("rocprofv3", "rocprof-compute")


@dataclass(frozen=True)
class Situation:
    """A kernel, and what its units and stalls say."""

    reading: KernelReading
    units: Mapping[str, tuple[float, str]]
    family: str
    """Of the unit that limits; `latency` when none does, empty when none was measured."""
    stalls: Mapping[str, float]

    @property
    def metrics(self) -> Mapping[str, float]:
        """All that was counted."""
        return self.reading.metrics

    def waits(self, names: tuple[str, ...]) -> float:
        """Return percent of stalled time with one of these reasons."""
        return sum(self.stalls.get(n, 0.0) for n in names)

    def weigh(self, families: tuple[str, ...], stalls: tuple[str, ...]) -> float:
        """Return how much a cause matters that shows at these units, or as these stalls when no unit is busy."""
        if self.family in families or not self.family:
            return 1.0
        if self.family == "latency":
            return 1.0 if not self.stalls or self.waits(stalls) >= 25 else 0.4
        return 0.3


@dataclass(frozen=True)
class Suggestion:
    """One thing to try."""

    topic: str
    weight: float
    """Part of the kernel's time that may be won, roughly."""
    text: str


def suggest(situation: Situation) -> list[Suggestion]:
    """Return at most three suggestions, those that may bring most first; never one without a count behind it.

    Where too little was counted, the one text that says so has weight 0.
    """
    best: dict[str, Suggestion] = {}
    for one in _causes(situation):
        if one.topic not in best or one.weight > best[one.topic].weight:
            best[one.topic] = one
    for one in rule_suggestions_of(situation):  # our words say what was counted: a rule only adds its estimate
        kept = best.get(one.topic, one)
        best[one.topic] = replace(kept, weight=max(kept.weight, one.weight))
    general = _general(situation, set(best))
    if general is not None:
        best.setdefault("general", general)
    ordered = sorted((s for s in best.values() if s.weight >= 0.02), key=lambda s: -s.weight)
    if ordered:
        return ordered[:MOST]
    if situation.reading.units_percent or situation.reading.texts.get("tool") in AMD_TOOLS:
        return [Suggestion("counters", 0.0, link_guide(NOT_ENOUGH_AMD, "amd"))]
    return [Suggestion("counters", 0.0, link_guide(NOT_ENOUGH, "counters"))]


def rule_suggestions_of(s: Situation) -> Iterator[Suggestion]:
    """Return what the profiler's own rules suggest, as far as the launch leaves room for it.

    ncu estimates what more warps would bring even where there are no more blocks, or where a unit is full already.
    """
    waves, idle = counted.waves_of(s.reading), counted.idle_share(s.metrics)
    small = waves is not None and waves < FULL
    for topic, weight, text in rule_suggestions(s.reading.rules):
        if topic == "occupancy" and (small or s.family not in ("", "latency")):
            continue
        if topic == "imbalance" and (small or (idle is not None and idle - _tail_share(waves) < LEAST_UNEVEN)):
            continue
        if topic == "occupancy" and s.waits(MEMORY_STALLS) < 50:
            weight *= 0.5
        yield Suggestion(topic, weight, text)


def _tail_share(waves: float | None) -> float:
    """Return which part of the time SMs idle because the last wave is not full."""
    return 1 - waves / math.ceil(waves) if waves is not None and 0 < waves < 10 else 0.0


def _causes(s: Situation) -> Iterator[Suggestion]:
    for cause in (_launch, _spills, _scattered, _atomics, _conflicts, _divergence, _imbalance, _unreached, _occupancy):
        yield from cause(s)


MEMORY = ("dram", "l2", "l2 store", "l1", "tex")


def _scattered(s: Situation) -> Iterator[Suggestion]:
    cure = "let neighbouring threads access neighbouring addresses, or stage through shared memory"
    for op, verb, what in (("ld", "load", "loaded"), ("st", "store", "stored")):
        used, sectors = counted.used_bytes(s.metrics, op), counted.sectors_a_request(s.metrics, op)
        if used is not None and 0 < used <= 20:
            part, text = used / counted.SECTOR_BYTES, f"{used:.0f} of 32 bytes of each {what} sector are used"
        elif used is None and sectors is not None and sectors > counted.LARGEST_WHOLE_REQUEST:
            part, text = 4 / sectors, f"a warp's request touches {sectors:.0f} {what} sectors, 4 to 16 are enough"
        else:
            continue
        weight = min(1 - part, _estimated(s, f"global {verb}")) * s.weigh(MEMORY, MEMORY_STALLS)
        yield Suggestion("coalesce", weight, link_guide(f"coalesce: {text}; {cure}", "coalesce"))


def _estimated(s: Situation, words: str) -> float:
    """Return twice what ncu estimates of the access pattern, 1 where it does not: few sectors may be scattered."""
    gains = [
        r.speedup_percent
        for r in s.reading.rules
        if r.name == "MemoryCacheAccessPattern" and r.scope == "global" and r.speedup_percent and words in r.text
    ]
    return min(1.0, max(gains) / 50) if gains else 1.0


def _spills(s: Situation) -> Iterator[Suggestion]:
    local, share = counted.local_accesses(s.metrics), counted.local_share(s.metrics)
    scratch = s.metrics.get("Scratch_Size")
    if not local and not scratch:
        return
    weight = 0.3
    what = f"{scratch:.0f} bytes of scratch a thread" if scratch else ""
    if local:
        part = None if share is None else share[0] if share[1] != "instructions" else min(1.0, 3 * share[0])
        weight = 0.6 if part is None else min(5 * part, 1.0, 0.5 + part)
        what = f"about {local:.2g} local loads and stores"
        what += f", {100 * share[0]:.0f} % of all {share[1]}" if share else ""
    text = (
        f"stop the spills to local memory ({what}): launch bounds that leave more registers, fewer values alive "
        "(smaller tile, less unrolling), arrays indexed by constants only"
    )
    yield Suggestion(
        "spills", weight * s.weigh((*MEMORY, "issue", "alu", "sm"), MEMORY_STALLS), link_guide(text, "spills")
    )


def _atomics(s: Situation) -> Iterator[Suggestion]:
    share, made = counted.atomic_share(s.metrics), counted.count_atomics(s.metrics)
    cure = "privatize (add up in registers, the warp, shared memory), then one atomic for each block and address"
    weigh = s.weigh(("l2", "l2 store", "l1"), MEMORY_STALLS)
    if share is not None and share >= 0.15:
        text = f"atomics are {100 * share:.0f} % of what global memory is asked for: {cure}"
        yield Suggestion("atomics", min(1.0, 0.4 + share) * weigh, link_guide(text, "atomics"))
    elif share is None and made and s.family in ("l2", "l2 store", "latency"):
        text = f"{made:.3g} atomics on global memory (what else it moves was not counted): {cure}"
        yield Suggestion("atomics", 0.8 * weigh, link_guide(text, "atomics"))
    shared = counted.shared_atomic_share(s.metrics)
    if shared is not None and shared >= 0.3:
        weight = min(1.0, 0.3 + shared) * s.weigh(("l1",), SHARED_STALLS)
        text = "atomics fill shared memory: privatize, a copy for each warp, or add up in registers first"
        yield Suggestion("atomics", weight, link_guide(text, "atomics"))


def _conflicts(s: Situation) -> Iterator[Suggestion]:
    share = counted.conflict_share(s.metrics)
    if share is None or share < 0.2:
        return
    weight = min(1.0, 0.1 + share) * s.weigh(("l1",), SHARED_STALLS)
    text = f"bank conflicts are {100 * share:.0f} % of shared memory's wavefronts: pad rows by one element, or swizzle"
    yield Suggestion("conflicts", weight, link_guide(text, "conflicts"))


def _divergence(s: Situation) -> Iterator[Suggestion]:
    counts = counted.threads_an_instruction(s.metrics)
    if counts is None or not 0 < counts[0] <= 0.75 * counts[1]:
        return
    threads, lanes = counts
    pipes = ("issue", "alu", "fma", "xu", "fp64", "control", "l1", "sm")
    weight = (1 - threads / lanes) * s.weigh(pipes, tuple(STALL_HELP))
    block = counted.block_threads(s.reading)
    if block is not None and block < lanes:
        text = f"a block of {block} threads leaves lanes of its warp empty: blocks of 128 or more"
        yield Suggestion("divergence", weight, link_guide(text, "occupancy"))
        return
    text = (
        f"warps diverge: {threads:.0f} of {lanes} threads work in an instruction; give the threads of a warp the same "
        "branch and loop length (sort or bin the work, one warp an item)"
    )
    yield Suggestion("divergence", weight, link_guide(text, "divergence"))


def _launch(s: Situation) -> Iterator[Suggestion]:
    waves, time_us = counted.waves_of(s.reading), s.reading.time_us
    busy = s.family not in ("", "latency")
    small = waves is not None and waves < FULL
    if time_us is not None and time_us < SHORT_US and not busy and (small or time_us < SHORT_US / 2):
        text = (
            f"launch overhead: {time_us:.1f} us is about a launch; batch the work, fuse it with its neighbours, or put "
            "the launches into a CUDA graph"
        )
        yield Suggestion("launch", 0.95, link_guide(text, "launch"))
    elif small and waves is not None:
        weight = (1 - waves) * (0.3 if busy else 1.0)
        share = f"{100 * waves:.0f}" if waves >= 0.01 else "less than 1"
        text = (
            f"the grid fills {share} % of the device: more blocks (smaller tiles, split the inner dimension, "
            f"several items at once; up to {1 / waves:.2g}x)"
        )
        yield Suggestion("launch", weight, link_guide(text, "small grid"))
    elif waves is not None and 1 < waves < 10:
        lost = 1 - waves / math.ceil(waves)
        if lost >= 0.05:
            text = (
                f"the last of {math.ceil(waves)} waves is not full: fit the grid to whole waves, or a persistent kernel"
                f" ({100 * lost:.0f} % of the time)"
            )
            yield Suggestion("tail", lost * (0.9 if not busy else 0.7), link_guide(text, "tail"))


def _imbalance(s: Situation) -> Iterator[Suggestion]:
    idle, waves = counted.idle_share(s.metrics), counted.waves_of(s.reading)
    if idle is None or idle < 0.2 or (waves is not None and waves < FULL):
        return
    if idle - _tail_share(waves) < LEAST_UNEVEN:
        return
    text = (
        f"uneven work: an SM has none for {100 * idle:.0f} % of the time; balance it (split long items, hand out small "
        "pieces by a counter, start the longest first)"
    )
    yield Suggestion("imbalance", idle * s.weigh((), tuple(STALL_HELP)), link_guide(text, "imbalance"))


def _unreached(s: Situation) -> Iterator[Suggestion]:
    """Advise when far fewer warps are active than fit: some blocks or warps end long before others."""
    possible, reached = (
        s.metrics.get("sm__maximum_warps_per_active_cycle_pct"),
        s.metrics.get("sm__warps_active.avg.pct_of_peak_sustained_active"),
    )
    waves = counted.waves_of(s.reading)
    if not possible or reached is None or s.family != "latency" or (waves is not None and waves < FULL):
        return
    lost = 1 - reached / possible
    if lost >= 0.35:
        text = (
            f"{reached:.0f} % of warps are active where {possible:.0f} % fit: warps or blocks end unevenly; balance "
            "the work, or give each block more of it"
        )
        yield Suggestion("imbalance", 0.7 * lost, link_guide(text, "imbalance"))


def occupancy_limiter(m: Mapping[str, float]) -> tuple[str, float] | None:
    """Return what keeps more blocks from an SM, several joined by `and`, and how many fit; `None` when not counted."""
    limits = {title: m[name] for title, (name, _) in LIMITERS.items() if name in m}
    if not limits:
        return None
    least = min(limits.values())
    return " and ".join(t for t, v in limits.items() if v == least), least


def _occupancy(s: Situation) -> Iterator[Suggestion]:
    possible, reached = (
        s.metrics.get("sm__maximum_warps_per_active_cycle_pct"),
        s.metrics.get("sm__warps_active.avg.pct_of_peak_sustained_active"),
    )
    limiter = occupancy_limiter(s.metrics)
    waves = counted.waves_of(s.reading)
    if (amd := counted.amd_limiter(s.reading)) is not None and s.family in ("", "latency"):
        text = f"occupancy is limited by {amd[0]} to {amd[1]:.0f} %: {AMD_HELP[amd[0]]}"
        yield Suggestion("occupancy", 0.8 * (1 - amd[1] / 100), link_guide(text, "amd"))
    top = next((name for name in s.stalls if name in STALL_HELP), "")
    if s.family != "latency" or limiter is None or (waves is not None and waves < FULL):
        return
    if top and top not in (*MEMORY_STALLS, *SHARED_STALLS, "wait", "no_instruction", "branch_resolving"):
        return
    warps = possible if possible is not None else reached
    titles = [t for t in limiter[0].split(" and ") if t != "warps"]
    share = counted.local_share(s.metrics)
    if "registers" in titles and share is not None and share[0] >= SPILLS:  # fewer would spill more
        titles.remove("registers")
    if warps is None or warps > 50 or not titles:
        return
    helps = "; ".join(LIMITERS[t][1] for t in titles)
    text = f"occupancy is limited by {' and '.join(titles)} to {warps:.0f} % ({limiter[1]:.0f} blocks an SM): {helps}"
    threads = counted.block_threads(s.reading)
    tiny = titles == ["blocks"] and threads is not None and threads <= 64
    weight = (1.4 if tiny else 0.8) * (1 - warps / 100) * (1.0 if s.waits(MEMORY_STALLS) >= 50 else 0.5)
    section = "occupancy" if tiny else "occupancy limit"
    yield Suggestion("occupancy", weight, link_guide(text, section))


def _general(s: Situation, known: set[str]) -> Suggestion | None:
    """Return what helps against the unit that limits, or the first stall, as far as its cause was counted."""
    if s.family == "latency" or (not s.family and s.stalls):
        return _stall_help(s)
    if s.family == "l1":
        return _shared_or_global(s, known)
    help_text = HELP.get(s.family)
    if help_text is None:
        return None
    if "spills" in known:
        help_text = help_text.replace("keep values in registers or shared memory, ", "")
    if s.family in ("dram", "l2", "l2 store") and known.isdisjoint({"coalesce", "atomics"}):
        uses = [counted.used_bytes(s.metrics, op) for op in ("ld", "st")]
        amd = bool(s.reading.units_percent)
        if all(u is None for u in uses) and not amd:
            help_text += "; bytes used of each sector were not counted (level full): coalesce first if few are"
    return Suggestion("general", 0.45, link_guide(help_text + _room(s), UNIT_LINKS[s.family]))


def _room(s: Situation) -> str:
    percent = next(iter(s.units.values()))[0]
    second = next(((t, v) for t, (v, f) in s.units.items() if f != s.family), None)
    if second is None or second[1] <= 0 or percent / second[1] < 1.02:
        return ""
    times = percent / second[1]
    return (
        f" (up to {times:.2g}x, then {second[0]} is next)"
        if times < 20
        else " (more than 20x until another unit limits)"
    )


def _shared_or_global(s: Situation, known: set[str]) -> Suggestion | None:
    """Advise for a busy load/store unit: which memory fills it decides."""
    local, shared = counted.local_accesses(s.metrics), counted.shared_accesses(s.metrics)
    waits_shared, waits_global = s.waits(SHARED_STALLS), s.waits(MEMORY_STALLS)
    unknown = "" if local is not None else "; local accesses were not counted: at level full see that nothing spills"
    if "spills" in known:  # wider tiles would spill more
        return None
    if s.reading.units_percent or (waits_shared > waits_global and waits_shared >= 10) or (shared and local == 0):
        return Suggestion("general", 0.45, link_guide(HELP["l1"] + _room(s) + unknown, UNIT_LINKS["l1"]))
    if waits_global >= 10:
        help_text = "fewer, wider global accesses (float4 loads)"
        if local is None:
            help_text = f"see at level full whether registers spill; if none do, {help_text}"
        return Suggestion("general", 0.45, link_guide(help_text + _room(s), "vector loads"))
    text = "not enough counters to say what fills the load/store unit (local, shared or global accesses): level full"
    named = not known.isdisjoint({"conflicts", "coalesce", "atomics"})
    return Suggestion("general", 0.05 if named else 0.45, link_guide(text, "counters"))


def _stall_help(s: Situation) -> Suggestion | None:
    top = next((item for item in s.stalls.items() if item[0] in STALL_HELP), None)
    if top is None:
        return None
    busiest = next(iter(s.units.values()))[0] if s.units else 0.0
    room = f", {100 / busiest:.2g}x until a unit is full" if 5 <= busiest < BUSY_PERCENT else ""
    text = f"{STALL_HELP[top[0]]} ({top[0]}; at most {top[1]:.0f} % of stalled time{room})"
    return Suggestion(
        "general", 0.15 + 0.25 * top[1] / 100, link_guide(text, "stalls" if top[0] != "barrier" else "barrier")
    )
