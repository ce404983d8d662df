"""Says of a program on a processor where its time goes: cores, the host's measured roofs, counts, hot lines, advice.

Lines are at most 80 columns, as terminals show them. Advice rests on what was measured; a counter that was not read
gives none.

Source: the model is Williams, Waterman, Patterson, CACM 52(4), 2009; thresholds are rules of thumb.
"""

import textwrap
from collections.abc import Iterator

from gpu_mcp_server.models.profile import KernelReading, KernelVerdict, Roofline, RooflineLevel
from gpu_mcp_server.profilers.perf_events import FUNCTION, UNKNOWN, VECTORS, shares_of
from gpu_mcp_server.time_format import format_time

COLUMNS = 80
NEAR = 70.0
"""Percent of a measured roof from which it bounds."""
LEAST_SHARE = 10.0
"""Percent of samples below which a function or line is left out."""
LONG_US = 100.0
"""Calls that are shorter gain nothing by threads: starting them takes as long."""
FEW_INSTRUCTIONS = 1.0
"""A cycle, below which the processor waits."""
MANY_MISSES = 5.0
"""Of the last cache, in 1,000 instructions."""
MANY_BRANCH_MISSES = 2.0
"""Percent of branches."""
NEAR_LINES = 3
"""Lines above a hot one where its loop may begin."""
MATH = "libm"


def processor_verdict(reading: KernelReading, share_percent: float | None = None) -> KernelVerdict:
    """Return where a program's time goes on a processor, as data and as text."""
    roof, (bound, percent) = _roofline(reading), _bound(reading)
    advice = list(_advice(reading))
    parts = [
        _head(reading, share_percent),
        *_roof_lines(reading, roof),
        *(f"TRY {n}: {text}" for n, text in enumerate(advice, 1)),
        _counted(reading),
        _shares("HOT FUNCTIONS", _functions(reading)),
        *_hot_lines(reading),
        f"UNKNOWN: {reading.texts[UNKNOWN]}" if UNKNOWN in reading.texts else "",
    ]
    return KernelVerdict(
        name=reading.name,
        time_us=reading.time_us,
        calls=reading.calls,
        share_percent=share_percent,
        bound=bound,
        bound_percent=percent,
        roofline=roof,
        advice=advice,
        verdict="\n".join(line for part in parts for line in wrap_text(part)),
    )


def wrap_text(text: str) -> list[str]:
    """Return a text in lines of at most 80 columns."""
    return textwrap.wrap(text, COLUMNS, subsequent_indent="  ", break_on_hyphens=False)


def _head(r: KernelReading, share: float | None) -> str:
    time = format_time(r.time_us / 1e6) if r.time_us else "time unknown"
    calls = f", median of {r.calls} calls" if r.calls > 1 else ""
    part = f" ({share:.0f} %)" if share is not None else ""
    busy, cores = r.metrics.get("busy cores"), r.metrics.get("cores")
    used = f"; {busy:.1f} of {cores:.0f} cores busy" if busy is not None and cores else ""
    if "processor s" in r.metrics:
        used = f"; {r.metrics['processor s']:.3g} s of processor time, {cores or 0:.0f} cores"
    waited = r.metrics.get("waited percent", 0.0)
    other = f"; {waited:.0f} % of the time it waited for a core" if waited >= LEAST_SHARE else ""
    return f"{r.name}: {time}{calls}{part}{used}{other}"


def _fits_cache(r: KernelReading) -> bool:
    moved = r.metrics.get("tensor bytes")
    return moved is not None and moved < r.metrics.get("cache bytes", 0.0)


def _bandwidth(r: KernelReading) -> tuple[float, float] | None:
    """Return GB/s of the tensors, each moved once, and of STREAM."""
    moved, most = r.metrics.get("tensor bytes"), r.metrics.get("stream GB/s")
    return (moved / r.time_us / 1e3, most) if moved and most and r.time_us else None


def _arithmetic(r: KernelReading) -> tuple[float, float] | None:
    """Return GFLOP/s of the declared operations, and of a loop of multiply-adds."""
    done, most = r.metrics.get("flops"), r.metrics.get("fma GFLOP/s")
    return (done / r.time_us / 1e3, most) if done and most and r.time_us else None


def _roofline(r: KernelReading) -> Roofline | None:
    arithmetic, bandwidth = _arithmetic(r), _bandwidth(r)
    if arithmetic is None:
        return None
    done, most = arithmetic
    levels: list[RooflineLevel] = []
    if bandwidth is not None and not _fits_cache(r):
        intensity = r.metrics["flops"] / r.metrics["tensor bytes"]
        roof = min(most, intensity * bandwidth[1])
        levels.append(
            RooflineLevel(
                level="memory",
                intensity_flop_b=intensity,
                bandwidth_gb_s=bandwidth[0],
                peak_bandwidth_gb_s=bandwidth[1],
                measured_gb_s=bandwidth[1],
                roof_tflop_s=roof / 1e3,
                of_roof_percent=100 * done / roof,
            )
        )
    return Roofline(
        pipe=r.texts.get("type", "fp32"),
        tflop_s=done / 1e3,
        peak_tflop_s=most / 1e3,
        peak_source="multiply-adds measured on this host",
        measured_tflop_s=most / 1e3,
        levels=levels,
    )


def _bound(r: KernelReading) -> tuple[str | None, float | None]:
    """Return the roof that a kernel is near; nothing where it is near none, or none was measured."""
    roofs = {"arithmetic": _arithmetic(r), "memory": None if _fits_cache(r) else _bandwidth(r)}
    reached = {name: 100 * pair[0] / pair[1] for name, pair in roofs.items() if pair}
    name = max(reached, key=lambda key: reached[key], default=None)
    return (name, reached[name]) if name is not None and reached[name] >= NEAR else (None, None)


def _roof_lines(r: KernelReading, roof: Roofline | None) -> Iterator[str]:
    bandwidth, arithmetic, m = _bandwidth(r), _arithmetic(r), r.metrics
    if bandwidth is None and arithmetic is None:
        yield f"ROOFLINE: unknown: {r.texts['no ceilings']}" if "no ceilings" in r.texts else ""
        return
    if bandwidth is not None:
        done, most = bandwidth
        text = f"ROOFLINE: {done:.3g} GB/s if each tensor moves once; STREAM reaches {most:.3g} here"
        if _fits_cache(r):
            sizes = f"{m['tensor bytes'] / 2**20:.3g} MiB fit in the cache of {m['cache bytes'] / 2**20:.3g} MiB"
            text += f", but {sizes}, which it does not bound"
        else:
            text += f" ({100 * done / most:.0f} %)"
        yield text
    if arithmetic is not None:
        text = f"{arithmetic[0]:.3g} GFLOP/s; multiply-adds reach {arithmetic[1]:.3g} here"
        text += f" ({100 * arithmetic[0] / arithmetic[1]:.0f} %)"
        if roof is not None and roof.levels:
            level = roof.levels[0]
            text += f"; at {level.intensity_flop_b:.3g} FLOP/B {level.of_roof_percent:.0f} % of the roof"
        yield f"ARITHMETIC: {text}"
    elif "problem" in r.texts:
        yield "ARITHMETIC: unknown: the problem declares no `flops`"
    if "ceilings" in r.texts:
        yield r.texts["ceilings"]


def _counted(r: KernelReading) -> str:
    m = r.metrics
    cycles, done = m.get("cycles"), m.get("instructions")
    parts: list[str] = []
    if cycles and done is not None:
        parts.append(f"{done / cycles:.2f} instructions a cycle")
    if cycles and m.get("task-clock"):
        parts.append(f"{cycles / m['task-clock'] / 1e6:.2f} GHz")
    if done and "cache-misses" in m:
        parts.append(f"{1e3 * m['cache-misses'] / done:.2g} cache misses in 1,000 instructions")
    if m.get("branches") and "branch-misses" in m:
        parts.append(f"{100 * m['branch-misses'] / m['branches']:.2g} % of branches missed")
    return f"COUNTED: {', '.join(parts)}" if parts else ""


def _functions(r: KernelReading) -> list[tuple[str, float]]:
    rows = [(name[len(FUNCTION) :], n) for name, n in r.metrics.items() if name.startswith(FUNCTION)]
    return shares_of(rows, r.metrics.get("samples", 0.0), LEAST_SHARE)


def _shares(title: str, rows: list[tuple[str, float]]) -> str:
    return f"{title}: {', '.join(f'{name[:60]} {share:.0f} %' for name, share in rows[:3])}" if rows else ""


def _line_shares(r: KernelReading) -> list[tuple[float, str, int, str]]:
    whole = r.metrics.get("samples", 0.0)
    found = [(100 * x.samples / whole, x.file.rpartition("/")[2], x.line, x.text) for x in r.lines] if whole else []
    return sorted((row for row in found if row[0] >= LEAST_SHARE), reverse=True)


def _hot_lines(r: KernelReading) -> Iterator[str]:
    for share, file, line, text in _line_shares(r)[:3]:
        begin = f"HOT LINE: {file[-40:]}:{line} {share:.0f} %"
        room = COLUMNS - len(begin) - 3
        yield begin + (f" `{text[:room]}`" if text and room > 8 else "")


def _advice(r: KernelReading) -> Iterator[str]:
    """Tell what to try, each with the measurement behind it."""
    m, bound = r.metrics, _bound(r)[0]
    busy, cores = m.get("busy cores"), m.get("cores", 0.0)
    alone = m.get("waited percent", 0.0) < LEAST_SHARE  # else other work may have kept its threads from the cores
    long = r.calls > 1 and (r.time_us or 0) >= LONG_US
    if long and alone and busy is not None and busy < 1.2 and cores >= 2:
        yield f"threads (OpenMP): {busy:.1f} of {cores:.0f} cores was busy"
    for name, share in _functions(r):
        if f"({MATH}" in name and share >= 2 * LEAST_SHARE:
            yield f"{name} takes {share:.0f} %: vectors of it (-ffast-math with libmvec) or a polynomial of your own"
            break
    if missed := _missed_vectors(r):
        yield missed
    if bound == "memory":
        yield "fewer bytes: the memory is at its roof (fuse with neighbours, narrower types)"
    if bound == "arithmetic":
        yield "fewer operations: the arithmetic is at its roof"
    yield from _counter_advice(r)


def _counter_advice(r: KernelReading) -> Iterator[str]:
    m = r.metrics
    cycles, done, branches = m.get("cycles"), m.get("instructions"), m.get("branches")
    if cycles and done and "cache-misses" in m:
        misses = 1e3 * m["cache-misses"] / done
        if done / cycles < FEW_INSTRUCTIONS and misses >= MANY_MISSES:
            yield f"blocks that stay in cache, or another layout: {misses:.2g} cache misses in 1,000 instructions"
    if branches and "branch-misses" in m:
        missed = 100 * m["branch-misses"] / branches
        if missed >= MANY_BRANCH_MISSES:
            yield f"fewer branches in the hot loop (masks, sorting): {missed:.2g} % of them missed"


def _missed_vectors(r: KernelReading) -> str:
    """Return advice on the hottest line whose loop the compiler did not turn into vectors, with its reason."""
    report = [row for line in r.texts.get(VECTORS, "").splitlines() if (row := _report_row(line))]
    for share, file, line, _ in _line_shares(r):
        near = [row for row in report if row[0] == file and line - NEAR_LINES <= row[1] <= line]
        missed = [(number, words) for _, number, words in near if "not vectorized" in words or "couldn't" in words]
        if missed and len(missed) == len(near):
            number, words = max(missed, key=lambda row: "not vectorized: " in row[1])
            return f"line {line} takes {share:.0f} %, and the compiler made no vectors of line {number}: {words[:120]}"
    return ""


def _report_row(line: str) -> tuple[str, int, str] | None:
    file, _, rest = line.partition(":")
    number, _, words = rest.partition(": ")
    return (file, int(number), words) if number.isdigit() else None
