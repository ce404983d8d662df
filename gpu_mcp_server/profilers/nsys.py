"""Nsight Systems: `nsys stats --format csv` and the SQLite of `nsys export`.

Not run here: no machine of ours had it. Shapes are those of its documentation: lines about files come before the
header of a report; in the SQLite, tables appear only when they have rows, names are in `StringIds`.
"""

from gpu_mcp_server.models.profile import KernelReading
from gpu_mcp_server.profilers.csv_tables import number, records, whole
from gpu_mcp_server.profilers.kernel_names import short_name
from gpu_mcp_server.profilers.sqlite_reader import query

_KERNELS = """
    SELECT s.value AS name, count(*) AS calls, sum(k.end - k.start) AS total_ns, max(k.registersPerThread) AS registers,
           max(k.staticSharedMemory + k.dynamicSharedMemory) AS shared
    FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName GROUP BY s.value
"""


def parse_stats(text: str) -> list[KernelReading]:
    """Read report `cuda_gpu_kern_sum` as CSV; never raises."""
    found: list[KernelReading] = []
    for row in records(text, "Total Time (ns)", "Instances", "Name"):
        ns, calls = number(row.get("Total Time (ns)")), whole(row.get("Instances"))
        if ns is None or not calls or not row.get("Name"):
            continue
        metrics = {
            k: v for k in ("Med (ns)", "Min (ns)", "Max (ns)", "StdDev (ns)") if (v := number(row.get(k))) is not None
        }
        found.append(
            KernelReading(
                name=short_name(row["Name"]),
                calls=calls,
                time_us=ns / 1000 / calls,
                total_us=ns / 1000,
                metrics=metrics,
            )
        )
    return sorted(found, key=lambda k: -(k.total_us or 0))


def parse_sqlite(data: bytes) -> list[KernelReading]:
    """Read kernels from an exported database; never raises."""
    found: list[KernelReading] = []
    for row in query(data, _KERNELS):
        ns, calls = number(row.get("total_ns")), whole(row.get("calls"))
        if ns is None or not calls:
            continue
        named = {"registers per thread": row.get("registers"), "shared memory": row.get("shared")}
        found.append(
            KernelReading(
                name=short_name(str(row.get("name"))),
                calls=calls,
                time_us=ns / 1000 / calls,
                total_us=ns / 1000,
                metrics={k: v for k, x in named.items() if (v := number(x)) is not None},
            )
        )
    return sorted(found, key=lambda k: -(k.total_us or 0))
