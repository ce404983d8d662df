"""Triton's Proton: its tree of scopes and kernels (hatchet's JSON), with program counter samples where it took them.

Source: files of Triton 3.6 on an H200. Only leaves hold what was measured; empty lines come before the document; the
device block's clocks are in kilohertz, `bus_width` in bits.
"""

import json
from collections.abc import Iterator
from typing import Any

from gpu_mcp_server.models.profile import KernelReading
from gpu_mcp_server.profilers.csv_tables import as_list, as_mapping, number, total
from gpu_mcp_server.profilers.kernel_names import short_name

TIME, COUNT = "time (ns)", "count"
NO_STALLS = ("selected", "not_selected", "not_Selected")
MAX_DEPTH = 200


def parse(text: str) -> list[KernelReading]:
    """Return the kernels, the longest in all first; never raises."""
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        return []
    found: dict[str, dict[str, float]] = {}
    scopes: dict[str, str] = {}
    for name, scope, metrics in (leaf for root in as_list(document) for leaf in _leaves(root, "", 0)):
        own = found.setdefault(name, {})
        for key, value in metrics.items():
            if (read := number(value)) is not None and not key.startswith("device"):
                own[key] = own.get(key, 0.0) + read
        scopes.setdefault(name, scope)
    device = _device(document)
    kernels = [_kernel(name, metrics, scopes[name], device) for name, metrics in found.items() if TIME in metrics]
    return sorted(kernels, key=lambda k: -(k.total_us or 0))


def _leaves(node: object, scope: str, depth: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
    tree = as_mapping(node)
    name = str(as_mapping(tree.get("frame")).get("name") or "")
    children = as_list(tree.get("children"))
    if not children and name and "metrics" in tree:
        yield name, scope, as_mapping(tree["metrics"])
    if depth < MAX_DEPTH:
        for child in children:
            yield from _leaves(child, name if name != "ROOT" else scope, depth + 1)


def _kernel(name: str, metrics: dict[str, float], scope: str, device: dict[str, float]) -> KernelReading:
    calls = max(1, int(metrics.get(COUNT, 1)))
    stalls = {k[8:]: v for k, v in metrics.items() if k.startswith("stalled_") and k[8:] not in NO_STALLS and v > 0}
    flops = total(v for k, v in metrics.items() if k.startswith("flops"))
    kept = {k: v for k, v in metrics.items() if not k.startswith("stalled_")}
    if flops:
        kept["flops"] = flops
    return KernelReading(
        name=short_name(name),
        calls=calls,
        time_us=metrics[TIME] / 1000 / calls,
        total_us=metrics[TIME] / 1000,
        metrics={**kept, **{f"device {k}": v for k, v in device.items()}},
        texts={"scope": scope} if scope else {},
        stalls=stalls,
    )


def _device(document: object) -> dict[str, float]:
    """Return what the second part says of the device: multiprocessors, clocks (kHz), width of the bus (bit)."""
    for part in map(as_mapping, as_list(document)):
        for kind in ("CUDA", "HIP"):
            for device in as_mapping(part.get(kind)).values():
                return {k: v for k, x in as_mapping(device).items() if (v := number(x)) is not None}
    return {}
