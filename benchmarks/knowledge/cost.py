"""What the search costs: first answer of a fresh process, memory above the server's, bytes of an answer.

python benchmarks/knowledge/cost.py DATA_DIR
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

FIRST = """
import sys, time; t = time.perf_counter()
from pathlib import Path
from gpu_mcp_server.knowledge.library import Library
from gpu_mcp_server.knowledge.storage import Storage
library = Library(Storage(Path(sys.argv[1])).current())
library.ask("copy memory without blocking the host")
lexical = time.perf_counter() - t
hybrid = None
if sys.argv[2] == "hybrid":
    from gpu_mcp_server.knowledge.vectors import Vectors
    dense = Vectors(library.folder, Path(sys.argv[1])).wait()
    library.ask("copy memory without blocking the host", dense=dense)
    hybrid = time.perf_counter() - t if dense else None
rss = next(int(l.split()[1]) / 1024 for l in open("/proc/self/status") if l.startswith("VmRSS"))
print(lexical, hybrid, rss, time.process_time())
"""


def resident_mb() -> float:
    with Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))


async def served(data_dir: str) -> None:
    from mcp import Client

    from gpu_mcp_server.server import server_from
    from gpu_mcp_server.settings import Settings

    settings = Settings(data_dir=Path(data_dir), index_documentation=False)
    async with Client(server_from(settings)) as client:
        await client.call_tool("list_problems", {})
        before = resident_mb()
        sizes: list[int] = []
        for query in (
            "cudaMemcpyAsync",
            "CUDA error 700",
            "how do I use more than 48 KB of shared memory",
            "ncclAllRedue",
        ):
            result = await client.call_tool("search_docs", {"query": query, "limit": 10})
            sizes.append(len(json.dumps(result.structured_content, ensure_ascii=False, separators=(",", ":"))))
        print(f"server {before:.0f} MB, after four searches {resident_mb():.0f} MB; answers of {sizes} characters")


def main() -> None:
    data_dir = sys.argv[1]
    print(f"load {os.getloadavg()[0]:.1f}")
    for kind in ("lexical", "hybrid"):
        for _ in range(3):
            done = subprocess.run(
                [sys.executable, "-c", FIRST, data_dir, kind], capture_output=True, text=True, check=True
            )
            lexical, hybrid, resident, cpu = done.stdout.split()
            print(f"{kind}: first answer lexical {float(lexical):.2f} s, hybrid {hybrid} s")
            print(f"    resident {float(resident):.0f} MB, CPU {float(cpu):.2f} s")
    asyncio.run(served(data_dir))


if __name__ == "__main__":
    main()
