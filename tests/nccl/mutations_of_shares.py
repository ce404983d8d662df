"""One fault each, in an all-to-all that loads from its peers and in one that puts shares of each block by GIN."""

SYNC = "  gate.sync(cta, cuda::memory_order_acq_rel);\n"
FIRST = SYNC + "  const int self"
LAST = SYNC + "}\n\nint main"
PULL = "pull_blocks<<<BLOCKS, THREADS, 0, work>>>(world, out_window, in_window, length);"
THEIRS = "ncclGetLsaPointer(source, span * self, from)"
MINE = "ncclGetLocalPointer(target, span * from)"
LOOP = "for (int step = 0; step < parties; step++)"
SEND = "send_blocks<<<BLOCKS, THREADS, 0, work>>>(world, out_window, in_window, length);"
PUT = "net.put(team, to, target, span * team.rank + skip, source, span * to + skip, share, ncclGin_SignalInc{done});"
GATE = "  gate.sync(cta, cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);\n"
PULLS: dict[str, tuple[str, ...]] = {
    "first barrier gone": (FIRST, "  const int self"),
    "last barrier gone": (LAST, "}\n\nint main"),
    "barriers in the loop only": (
        LAST,
        "}\n\nint main",
        "mine[i] = theirs[i];\n",
        "mine[i] = theirs[i];\n    if (step + 1 < parties) gate.sync(cta, cuda::memory_order_acq_rel);\n",
    ),
    "last barrier acquires nothing": (LAST, LAST.replace("acq_rel", "relaxed")),
    "barrier count of one": ("lsaBarrierCount = BLOCKS", "lsaBarrierCount = 1"),
    "more blocks than barriers": (PULL, PULL.replace("<<<BLOCKS,", "<<<2 * BLOCKS,")),
    "barrier under a thread's condition": (LAST, "  if (first < length)" + LAST),
    "barrier index by the rank": ("ncclTeamTagLsa(), blockIdx.x}", "ncclTeamTagLsa(), (unsigned)world.lsaRank}"),
    "offset in elements": (THEIRS, "ncclGetLsaPointer(source, length * self, from)"),
    "own slot in elements": (MINE, "ncclGetLocalPointer(target, length * from)"),
    "peer's slot of the peer": (THEIRS, "ncclGetLsaPointer(source, span * from, from)"),
    "own slot of the own rank": (MINE, "ncclGetLocalPointer(target, span * self)"),
    "windows swapped at the launch": (PULL, PULL.replace("out_window, in_window", "in_window, out_window")),
    "one window for both": (PULL, PULL.replace("out_window, in_window", "in_window, in_window")),
    "window too small": ("outgoing, size, &out_window", "outgoing, size / parties, &out_window"),
    "window over other memory": ("comm, outgoing, size", "comm, incoming, size"),
    "peer beyond the team": (LOOP, "for (int step = 0; step <= parties; step++)", "(self + step) % parties", "step"),
    "world's ranks in the LSA team": (
        "self = world.lsaRank, parties = world.lsaSize",
        "self = world.rank, parties = world.lsaSize",
    ),
    "last peer left out": (LOOP, "for (int step = 0; step < parties - 1; step++)"),
    "launch under a rank": (PULL, f"if (self != 0) {PULL}"),
    "turns by the rank": ("turn < 20; ++turn", "turn < 20 + self; ++turn"),
    "reader on another stream": (
        "read_blocks<<<BLOCKS, THREADS, 0, work>>>",
        "read_blocks<<<BLOCKS, THREADS, 0, spare>>>",
    ),
    "writer on another stream": (
        "write_blocks<<<BLOCKS, THREADS, 0, work>>>",
        "write_blocks<<<BLOCKS, THREADS, 0, spare>>>",
    ),
}
SHARES: dict[str, tuple[str, ...]] = {
    "signal's start forgotten": ("start + team.nRanks", "team.nRanks"),
    "too few signals": ("ginSignalCount = BLOCKS", "ginSignalCount = BLOCKS / 2"),
    "waits for too many": ("start + team.nRanks", "start + 2 * team.nRanks"),
    "waits for too few": ("start + team.nRanks", "start + 1"),
    "one signal for all": ("ncclGinSignal_t done = blockIdx.x", "ncclGinSignal_t done = 3"),
    "start read behind the barrier": (
        "  const uint64_t start = net.readSignal(done);\n",
        "",
        GATE,
        GATE + "  const uint64_t start = net.readSignal(done);\n",
    ),
    "flush gone": ("  net.flush(cta);\n", ""),
    "put without signal": (", ncclGin_SignalInc{done});", ");"),
    "wait gone": ("  net.waitSignal(cta, done, start + team.nRanks);\n", ""),
    "puts of one thread": (
        "for (int to = threadIdx.x; to < team.nRanks; to += blockDim.x)",
        "for (int to = threadIdx.x; to < team.nRanks && threadIdx.x == 0; to += blockDim.x)",
    ),
    "connections none": ("NCCL_GIN_CONNECTION_FULL", "NCCL_GIN_CONNECTION_NONE"),
    "barrier gone": (GATE, ""),
    "share in elements": ("share = span / gridDim.x", "share = length / gridDim.x"),
    "put to the own slot of the peer": ("span * team.rank + skip", "span * to + skip"),
    "put from the own rank's slot": ("source, span * to + skip", "source, span * team.rank + skip"),
    "skip of another block": ("skip = share * blockIdx.x", "skip = share * threadIdx.x"),
    "windows swapped": (SEND, SEND.replace("out_window, in_window", "in_window, out_window")),
    "launch of the first rank": (SEND, f"if (self == 0) {SEND}"),
}
