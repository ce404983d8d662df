"""From what hotspot_trace wrote to hot spots: shares of the recorded time, bounds, least times of the data sheet.

The file is the work of a hostile program as well: whatever does not fit its fields is refused as a whole.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from gpu_mcp_server.models.device_spec import DeviceSpec
from gpu_mcp_server.models.profile import HotModule, Hotspot, InputShape, SecondRun
from gpu_mcp_server.profilers.kernel_names import short_name
from gpu_mcp_server.text_safety import escape_controls
from gpu_mcp_server.workers.hotspot_trace import BUSY_ENOUGH, MOST_EVENTS
from gpu_mcp_server.workers.run_profiler import OUT_OF_TIME

MOST_HOTSPOTS, MOST_MODULES = 10, 8
LEAST_SHARE = 0.01
"""Of the whole, from which on an operator or a module is listed."""
COVERED = 0.9
"""Part of the time of all operators that those listed have together, where so many may be: on a GPU that is mostly idle
none has a great share of the whole."""
ALIKE = 0.8
"""Part of the kernels' time that two runs must share by name, so that one's busy share holds for the other."""
TYPES = {
    "double": ("float64", 8),
    "float": ("float32", 4),
    "c10::Half": ("float16", 2),
    "c10::BFloat16": ("bfloat16", 2),
    "long int": ("int64", 8),
    "int": ("int32", 4),
    "unsigned char": ("uint8", 1),
    "signed char": ("int8", 1),
    "bool": ("bool", 1),
}
"""Source: torch 2.13's names in a trace's "Input type", and bytes of an element."""
COMPILING = "torch.compile: compiling"
"""Row of hotspot_trace for the compiler of torch.compile."""
_TENSOR = re.compile(r"([\w: ]{1,40})\[(\d{1,12}(?:, \d{1,12}){0,15})\]")
Name = Annotated[str, Field(max_length=400), AfterValidator(lambda text: " ".join(escape_controls(text).split()))]
"""Of operators, kernels, modules, inputs: on one line."""
Count = Annotated[int, Field(ge=0, le=10**12)]
Microseconds = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Tensor = tuple[str, tuple[int, ...]]
PRODUCTS = {"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2), "aten::baddbmm": (1, 2)}
"""Which inputs of a matrix product are multiplied."""


class RecordedCalls(BaseModel):
    """Calls of an operator with the same inputs."""

    inputs: list[Name] = Field(max_length=12)
    calls: Count
    self_us: Microseconds
    device_us: Microseconds


class RecordedRow(BaseModel):
    """Sums over the calls of one operator, module or kernel."""

    name: Name
    calls: Count
    self_us: Microseconds
    device_us: Microseconds
    unowned_us: Microseconds
    """Of a kernel, where no operator of torch launched it."""
    shapes: list[RecordedCalls] = Field(max_length=20)
    kernels: dict[Name, Microseconds] = Field(max_length=20)
    modules: dict[Name, Microseconds] = Field(max_length=20)


class RecordedProgram(BaseModel):
    """Record that hotspot_trace wrote."""

    torch: Name
    device: Name | None
    wall_s: float = Field(gt=0, le=1e6, allow_inf_nan=False)
    steps: Count
    compiled: Count
    forks: Count
    covered_us: Microseconds
    device_busy_us: Microseconds
    device_events: Count
    """Kernels and copies, of which only the names that took longest are listed; at most `MOST_EVENTS`."""
    events: Count
    events_left_out: bool
    operators: list[RecordedRow] = Field(max_length=300)
    modules: list[RecordedRow] = Field(max_length=300)
    kernels: list[RecordedRow] = Field(max_length=300)

    @property
    def compiling_us(self) -> float:
        """Return the host's time in torch.compile's compiler, on all threads."""
        return sum(row.self_us for row in self.operators if row.name == COMPILING)

    @property
    def on_gpu(self) -> bool:
        """Return whether a GPU did anything."""
        return self.device_busy_us > 0

    @property
    def device_busy(self) -> float:
        """Return the share of the time in which the GPU was busy, 0 to 1."""
        return min(1.0, self.device_busy_us / (self.wall_s * 1e6))


class MissingTorch(BaseModel):
    """Record that hotspot_trace writes where it cannot begin."""

    missing: Name
    python: Name


def parse_recording(data: bytes) -> RecordedProgram | MissingTorch | None:
    """Read the file; `None` for what is none, or was tampered with."""
    for kind in (RecordedProgram, MissingTorch):
        try:
            return kind.model_validate_json(data)
        except ValidationError:
            continue
    return None


def read_second_run(
    found: RecordedProgram, about: Mapping[str, Any], data: bytes
) -> tuple[SecondRun | None, str | None]:
    """Return the second run if its busy share holds for the first, otherwise why it is missing where it is needed.

    Args:
        found: The first run's record.
        about: What run_profiler wrote of both runs: exit codes, `code` and `second`.
        data: The second run's record.
    """
    if not found.on_gpu or found.device_busy >= BUSY_ENOUGH:
        return None, None
    code = about.get("second")
    if code is None:
        return None, "the program failed" if about.get("code") else "timeout_s leaves no time for a second run"
    if code:
        ended = "timeout_s ended the second run" if code == OUT_OF_TIME else f"the second run ended with {code}"
        return None, ended
    again = parse_recording(data)
    if not isinstance(again, RecordedProgram) or not again.device_busy:
        return None, "the second run recorded no work of the GPU"
    first, other = _kernel_parts(found), _kernel_parts(again)
    alike = sum(min(part, other.get(name, 0.0)) for name, part in first.items())
    if alike < ALIKE:
        return None, f"the second run ran other kernels, whose time agrees by {alike:.0%} only"
    if again.device_events >= MOST_EVENTS:
        return (
            None,
            f"the second run has more than {MOST_EVENTS:,} calls of kernels, and the others are lost: lower record_s",
        )
    kernels, busy = again.device_events, again.device_busy
    return SecondRun(wall_s=again.wall_s, kernels=kernels, device_busy=busy, alike=min(1.0, alike)), None


def whole_time_us(found: RecordedProgram, second: SecondRun | None) -> float:
    """Return the microseconds that the first run had taken with the GPU as busy as it was in the busier run.

    Both runs slow launches, so the GPU of the program itself is at least that busy.
    """
    if second is None:
        return found.wall_s * 1e6
    return found.device_busy_us / max(second.device_busy, found.device_busy)


def rank_hotspots(
    found: RecordedProgram, spec: DeviceSpec | None, second: SecondRun | None = None
) -> tuple[list[Hotspot], list[Hotspot]]:
    """Return the operators that take longest, and those left out; shares are by the second run, if there is one.

    On a GPU an operator's time is that of the kernels that it launched, and kernels that no operator launched stand
    beside them; on a processor it is its own. What torch.compile's compiler does is none: no kernel replaces it.
    """
    wall_us = whole_time_us(found, second)
    operators = [r for r in found.operators if r.name != COMPILING]
    rows: list[tuple[RecordedRow, float]]
    kernels: list[tuple[RecordedRow, float]] = []
    if found.on_gpu:
        rows = [(r, r.device_us) for r in operators if r.device_us > 0]
        kernels = [(r, r.unowned_us) for r in found.kernels if r.unowned_us > 0]
    else:
        rows = [(r, r.self_us) for r in operators if r.self_us > 0]
    spots = [_hotspot(r, us, found, spec, wall_us) for r, us in rows]
    spots += [
        Hotspot(
            name=short_name(r.name), kind="kernel", share=_share(us, wall_us), busy_share=_busy_share(us, found),
            at_most_speedup=bound_speedup(_share(us, wall_us)), calls=r.calls, total_us=us,
        )
        for r, us in kernels
    ]  # fmt: skip
    spots.sort(key=lambda s: -s.total_us)
    wanted_us, listed_us, count = COVERED * sum(s.total_us for s in spots), 0.0, 0
    for spot in spots[:MOST_HOTSPOTS]:
        if count and spot.share < LEAST_SHARE and listed_us >= wanted_us:
            break
        listed_us += spot.total_us
        count += 1
    return spots[:count], spots[count:]


def rank_modules(found: RecordedProgram) -> list[HotModule]:
    """Return the modules by place, numbers in their paths as `*`, the longest first."""
    calls: dict[str, int] = {}
    times: dict[str, float] = {}
    kernels: dict[str, float] = {}
    for row in found.modules:
        path = re.sub(r"(?<=\.)\d+(?=\.|$)", "*", row.name)
        calls[path] = calls.get(path, 0) + row.calls
        times[path] = times.get(path, 0.0) + row.self_us
        kernels[path] = kernels.get(path, 0.0) + row.device_us
    wall_us = found.wall_s * 1e6
    listed = [
        HotModule(path=p, calls=calls[p], share=_share(us, wall_us), busy_share=_busy_share(kernels[p], found))
        for p, us in times.items()
    ]
    listed = [m for m in listed if max(m.share, m.busy_share or 0.0) >= LEAST_SHARE]
    return sorted(listed, key=lambda m: -m.share)[:MOST_MODULES]


def bound_speedup(share: float) -> float:
    """Return how many times as fast the whole becomes at most, were this part free (Amdahl)."""
    return 1 / max(1 - share, 1e-3)


def least_us(name: str, inputs: Sequence[str], spec: DeviceSpec) -> float | None:
    """Return the least time of one call by the data sheet: bytes that must be read, or products; `None` if unknown.

    What an operator writes is not in a trace but for matrix products: the bound is low, never high.
    """
    tensors = [t for t in map(parse_input, inputs) if t is not None]
    if not tensors:
        return None
    read = sum(math.prod(dims) * TYPES[dtype][1] for dtype, dims in tensors)
    least = read / (spec.dram_gb_s * 1e3)
    factors = [parse_input(inputs[i]) for i in PRODUCTS.get(name, ()) if i < len(inputs)]
    if len(factors) == 2 and factors[0] and factors[1]:
        (dtype, left), (_, right) = factors[0], factors[1]
        peak = spec.peak_of(TYPES[dtype][0], strict=False)
        if peak is not None and len(left) == len(right) >= 2 and left[-1] == right[-2]:
            least = max(least, 2 * math.prod(left) * right[-1] / (peak[1] * 1e6))
    return least


def parse_input(text: str) -> Tensor | None:
    """Return type and sizes of a tensor in a trace's words; `None` for scalars and types that are not known."""
    match = _TENSOR.fullmatch(text)
    if match is None or match[1] not in TYPES:
        return None
    return match[1], tuple(int(n) for n in match[2].split(","))


def _share(us: float, wall_us: float) -> float:
    return min(1.0, us / wall_us)


def _busy_share(us: float, found: RecordedProgram) -> float | None:
    """Return the part of the time in which the GPU was busy; `None` where there was none."""
    return min(1.0, us / found.device_busy_us) if found.on_gpu else None


def _kernel_parts(found: RecordedProgram) -> dict[str, float]:
    """Return each kernel's part of the time of all, 0 to 1."""
    whole = sum(row.self_us for row in found.kernels)
    return {row.name: row.self_us / whole for row in found.kernels if whole}


def _hotspot(row: RecordedRow, us: float, found: RecordedProgram, spec: DeviceSpec | None, wall_us: float) -> Hotspot:
    return Hotspot(
        name=row.name,
        kind="operator",
        share=_share(us, wall_us),
        busy_share=_busy_share(us, found),
        at_most_speedup=bound_speedup(_share(us, wall_us)),
        calls=row.calls,
        total_us=us,
        shapes=[_shape(row.name, p, found.on_gpu, spec) for p in row.shapes],
        kernels=[short_name(k) for k in sorted(row.kernels, key=lambda k: -row.kernels[k])],
        modules=sorted(row.modules, key=lambda m: -row.modules[m]),
    )


def _shape(name: str, part: RecordedCalls, on_gpu: bool, spec: DeviceSpec | None) -> InputShape:
    us = part.device_us if on_gpu else part.self_us
    least = least_us(name, part.inputs, spec) if spec is not None and us else None
    return InputShape(
        inputs=part.inputs,
        calls=part.calls,
        total_us=us,
        roofline_percent=100 * least * part.calls / us if least and us else None,
    )
