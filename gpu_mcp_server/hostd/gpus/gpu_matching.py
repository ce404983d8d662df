"""Matches a job with the GPUs of a host. No I/O."""

from typing import Any, Dict, List, Mapping, Optional, Sequence

from ..protocol import VENDORS, GpuRequest, has_memory


def vendor_of(gpu: Mapping[str, Any]) -> str:
    """Return whose a GPU is."""
    return str(gpu.get("vendor") or "nvidia")


def matching_gpus(gpus: Sequence[Dict[str, Any]], want: GpuRequest) -> List[Dict[str, Any]]:
    """Return the GPUs that a job could have, all of one vendor: where none is named, NVIDIA's if they are enough."""
    fitting = [g for g in gpus if matches_request(g, want)]
    by_vendor = [[g for g in fitting if vendor_of(g) == v] for v in ((want.vendor,) if want.vendor else VENDORS)]
    # If no vendor has enough, the largest group makes the refusal tell how many there are.
    return next((some for some in by_vendor if len(some) >= want.count), max(by_vendor, key=len))


def matches_request(gpu: Mapping[str, Any], want: GpuRequest) -> bool:
    """Say whether a GPU is what a job asks for."""
    named = not want.uuids or gpu["uuid"] in want.uuids
    known = not want.arch or gpu.get("arch") == want.arch
    return want.vendor in ("", vendor_of(gpu)) and named and known and has_memory(gpu, want.memory_bytes)


def choose_gpus(names: Sequence[str], count: int, links: Optional[Mapping[str, Sequence[str]]]) -> List[str]:
    """Return `count` of the names, the first that will do; where links matter, all joined to each other; or none."""
    if links is None or count < 2:
        return list(names[:count]) if len(names) >= count else []

    def grow(chosen: List[str], rest: Sequence[str]) -> List[str]:
        if len(chosen) == count:
            return chosen
        for at, name in enumerate(rest):
            peers = set(links.get(name, ()))
            more = grow([*chosen, name], [n for n in rest[at + 1 :] if n in peers])
            if more:
                return more
        return []

    return grow([], list(names))
