"""Progress that a client is told: each new thing once, and a place in the queue no more often than it is worth."""

from gpu_mcp_server.mcp_api.progress import QUEUE_S, Progress


async def test_a_place_in_the_queue_is_told_where_it_changes_and_not_each_second():
    now, told = 0.0, list[tuple[float, str]]()

    async def report(at_s: float, message: str) -> None:
        told.append((round(at_s), message))

    progress = Progress(report, clock=lambda: now)
    await progress("attempt a-1: judging")
    for second in range(60):
        now = float(second)
        position = 2 if second < 31 else 1
        place = f"queue: position {position}, about {60 - second} s: waiting because g is held by j-1 for {second} s"
        await progress(place)
        await progress(f"b: {place}")
    await progress.beat()
    assert [(at_s, said.partition(", about")[0]) for at_s, said in told] == [
        (0, "attempt a-1: judging"),
        (0, "queue: position 2"),
        (0, "b: queue: position 2"),
        (31, "queue: position 1"),
        (31, "b: queue: position 1"),
        (59, "still running: b: queue: position 1"),
    ]

    told.clear()
    for second in range(60, 100):  # the holder is another each second
        now = float(second)
        await progress(f"queue: position 1, about 1 s: waiting because g is held by j-{second} for 0 s")
    assert len(told) == 40 / QUEUE_S
