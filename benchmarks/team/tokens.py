"""10,000 wrong tokens against a server over HTTP: what each costs, beside a right one, whether or not its id exists."""

import asyncio
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.web.site import served

NUMBER = 10_000


async def timed(port: int, secret: str) -> tuple[str, float]:
    """Return status and seconds of one request on a connection that is kept."""
    reader, writer = connections[port]
    began = time.perf_counter()
    writer.write(f"GET /readyz2 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\n\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = next(int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"content-length: "))
    await reader.readexactly(length)
    return head.split(b" ")[1].decode(), time.perf_counter() - began


connections: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}


async def main() -> None:
    """Ask in turns with a wrong secret of a token that exists, one that does not, no token's form, and a right one."""
    async with served() as site:
        good = await site.token("ada")
        port = int(site.url.rpartition(":")[2])
        connections[port] = await asyncio.open_connection("127.0.0.1", port)
        kinds = {
            "known id, wrong secret": lambda n: f"gpumcp_{good.split('_')[1]}_{n:043d}",
            "unknown id": lambda n: f"gpumcp_{n:012x}_{'A' * 43}",
            "not a token's form": lambda n: f"{n:068d}",
            "right": lambda _: good,
        }
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        codes: dict[str, set[str]] = {kind: set() for kind in kinds}
        before = len(await site.team.db.fetch_all("SELECT * FROM audit_log"))
        for number in range(NUMBER // 3):
            for kind, secret in kinds.items():
                code, took = await timed(port, secret(number))
                seconds[kind].append(took)
                codes[kind].add(code)
        rows = len(await site.team.db.fetch_all("SELECT * FROM audit_log")) - before
    found = {
        kind: {"answers": sorted(codes[kind]), "median_us": round(statistics.median(taken) * 1e6, 1)}
        for kind, taken in seconds.items()
    }
    print(json.dumps({"requests": 4 * (NUMBER // 3), "rows_written": rows, **found}, indent=2))


if __name__ == "__main__":
    asyncio.run(main())
