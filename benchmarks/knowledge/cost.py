"""Cost of the search: first answer of a fresh process, memory, a rebuild, bytes of an answer."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

RUNS = 3
FIRST = """
import sys, time; t = time.perf_counter()
from pathlib import Path
from gpu_mcp_server.knowledge.search.index_reader import IndexReader
from gpu_mcp_server.knowledge.index.index_store import Storage
library = IndexReader(Storage(Path(sys.argv[1])).current())
library.ask("copy memory without blocking the host")
if sys.argv[2] == "hybrid":
    from gpu_mcp_server.knowledge.vectors.vector_index import Vectors
    dense = Vectors(library.folder, Path(sys.argv[1])).wait()
    library.ask("copy memory without blocking the host", dense=dense)
took = time.perf_counter() - t
rss = next(int(l.split()[1]) / 1024 for l in open("/proc/self/status") if l.startswith("VmRSS"))
print(took, rss)
"""
QUERIES = ("cudaMemcpyAsync", "CUDA error 700", "how do I use more than 48 KB of shared memory", "ncclAllRedue")


def first_answers(data_dir: Path, kind: str) -> tuple[float, float]:
    """Return the median time and memory of processes that ask one question."""
    found: list[tuple[float, float]] = []
    for _ in range(RUNS):
        command = [sys.executable, "-c", FIRST, str(data_dir), kind]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        took, resident = map(float, done.stdout.split())
        found.append((took, resident))
    return sorted(found)[RUNS // 2]


def rebuilt(data_dir: Path, aside: Path) -> tuple[int, float, float]:
    """Read again what the index was made of, with nothing kept: entries, seconds, seconds of the processor."""
    from gpu_mcp_server.knowledge.index import build
    from gpu_mcp_server.knowledge.index.index_store import Storage

    storage, fresh = Storage(data_dir), Storage(aside)
    for each in storage.added_folders():
        fresh.add(Path(each["path"]), **{key: value for key, value in each.items() if key != "path"})
    begun, cpu = time.perf_counter(), time.process_time()
    counts = build.build(fresh, rebuild=True).counts
    return counts.entries, time.perf_counter() - begun, time.process_time() - cpu


def resident_mb() -> float:
    with Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))


def answers(data_dir: Path, aside: Path) -> tuple[float, float, list[int]]:
    """Return the server's memory before and after lexical searches, and the characters of the answers.

    In a process of its own that has the index and no model.
    """
    aside.mkdir()
    (aside / "knowledge").symlink_to(data_dir.resolve() / "knowledge")
    command = [sys.executable, __file__, str(aside)]
    environment = {**os.environ, "HOME": str(aside)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    before, after, *sizes = done.stdout.split()
    return float(before), float(after), [int(size) for size in sizes]


async def served(data_dir: Path) -> None:
    from mcp import Client

    from gpu_mcp_server.mcp_api.server import server_from_settings
    from gpu_mcp_server.settings.server_settings import Settings

    async with Client(server_from_settings(Settings(data_dir=data_dir, index_documentation=False))) as client:
        await client.call_tool("list_problems", {})
        before = resident_mb()
        sizes: list[int] = []
        for query in QUERIES:
            result = await client.call_tool("search_docs", {"query": query, "limit": 10})
            sizes.append(len(json.dumps(result.structured_content, ensure_ascii=False, separators=(",", ":"))))
        print(before, resident_mb(), *sizes)


if __name__ == "__main__":
    import asyncio

    asyncio.run(served(Path(sys.argv[1])))
