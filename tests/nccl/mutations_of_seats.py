"""One fault each, in an all-to-all whose places a helper finds, and in one of a block a peer that puts by GIN."""

ARRIVE = "  meeting.arrive(all, cuda::memory_order_release);\n"
FIRST = ARRIVE + "  meeting.wait(all, cuda::memory_order_acquire);\n"
LAST = "  meeting.sync(all, cuda::memory_order_acq_rel);\n}\n\nint main"
DEAL = "deal<<<24, 384, 0, main_stream>>>(hands, tables, count, players);"
MAIL = "mail<<<seats, 384, 0, main_stream>>>(hands, tables, count, players);"
THEIRS = "place_of<int>(to, seat, count, peer)"
MINE = "place_of<int>(from, peer, count, seat)"
CAME = "  const uint64_t came = post.readSignal(peer);\n"
MEETING = "  meeting.sync(all, cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);\n"
ACTION = "ncclGin_SignalInc{(ncclGinSignal_t)club.rank}"
DEALS: dict[str, tuple[str, ...]] = {
    "first barrier gone": (FIRST, ""),
    "last barrier gone": (LAST, "}\n\nint main"),
    "both barriers before the copy": (LAST, "}\n\nint main", FIRST, FIRST + LAST.partition("}")[0]),
    "arrives and never waits": (FIRST, ARRIVE),
    "first wait acquires nothing": ("memory_order_acquire", "memory_order_relaxed"),
    "fewer barriers than blocks": ("lsaBarrierCount = 24", "lsaBarrierCount = 12"),
    "last barrier of one rank": (LAST, "  if (seat == 0)" + LAST),
    "all blocks at one barrier": ("ncclTeamTagLsa(), blockIdx.x}", "ncclTeamTagLsa(), 0}"),
    "place in elements": ("sizeof(T) * count * slot", "count * slot"),
    "peer's slot on the peer": (THEIRS, THEIRS.replace("seat", "peer")),
    "own slot for all peers": (MINE, MINE.replace("from, peer", "from, seat")),
    "windows swapped": (DEAL, DEAL.replace("hands, tables", "tables, hands")),
    "window of one slot": ("club, table, room", "club, table, room / seats"),
    "window over the other memory": ("club, table, room", "club, hand, room"),
    "loop of peers too short": ("while (hop < seats)", "while (hop < seats - 1)"),
    "launch under a rank": (DEAL, f"if (seat != 0) {DEAL}"),
    "turns by the rank": ("turn < 30", "turn < 30 + seat"),
    "consumer on another stream": ("compare<<<48, 128, 0, main_stream", "compare<<<48, 128, 0, side"),
}
MAILS: dict[str, tuple[str, ...]] = {
    "value before not added": ("came + 1)", "1)"),
    "fewer signals than blocks": ("ginSignalCount = seats", "ginSignalCount = seats / 2"),
    "waits for too many": ("came + 1)", "came + club.nRanks)"),
    "waits for too few": ("came + 1)", "came)"),
    "one signal for all blocks": (ACTION, "ncclGin_SignalInc{0}"),
    "value read late": (CAME, "", MEETING, MEETING + CAME),
    "no flush": ("  post.flush(all);\n", ""),
    "put without signal": (ACTION, "ncclGin_None{}"),
    "no wait": ("  post.waitSignal(all, peer, came + 1);\n", ""),
    "waits at the signal of the own rank": ("waitSignal(all, peer", "waitSignal(all, club.rank"),
    "each thread puts": (ACTION + ", ncclGin_None{}, all)", ACTION + ")"),
    "connections none": ("NCCL_GIN_CONNECTION_FULL", "NCCL_GIN_CONNECTION_NONE"),
    "barrier gone": (MEETING, ""),
    "fewer barriers than blocks": ("worldGinBarrierCount = seats", "worldGinBarrierCount = 1"),
    "letter in elements": ("letter = sizeof(int) * count", "letter = count"),
    "put into the peer's slot": ("letter * club.rank", "letter * peer"),
    "windows swapped": (MAIL, MAIL.replace("hands, tables", "tables, hands")),
    "launch of one rank": (MAIL, f"if (seat == 0) {MAIL}"),
}
