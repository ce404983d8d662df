"""One fault each, in two all-to-alls by GIN: signals by sender and a warp a peer; a kernel that puts and one that waits."""

SHIP = "ship<<<1, 32 * WARPS, 0, belt>>>(depot, nodes);"
PUT = "gin.put(all, to, depot.arriving, me * parcel, depot.leaving, to * parcel, parcel, "
GATE = "  gate.sync(ncclCoopCta(), cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);\n"
SEEN = "  for (int from = threadIdx.x; from < nodes; from += blockDim.x) seen[from] = gin.readSignal(from);\n"
WAITS = "  for (int from = 0; from < nodes; from++) gin.waitSignal(ncclCoopCta(), from, seen[from] + 1);\n"
COUNTED = "  gin.waitCounter(ncclCoopCta(), 0, gone + nodes);\n"
PARCELS: dict[str, tuple[str, ...]] = {
    "value before left out": ("seen[from] + 1", "1"),
    "signals read after the gate": (SEEN, "", GATE, GATE + SEEN),
    "waits for a signal twice as high": ("seen[from] + 1", "seen[from] + 2"),
    "one sender is not waited for": ("for (int from = 0; from < nodes", "for (int from = 1; from < nodes"),
    "no wait for what comes": (WAITS, ""),
    "no wait for what leaves": (COUNTED, ""),
    "counter of one put too many": ("gone + nodes", "gone + nodes + 1"),
    "counter without its value before": ("gone + nodes", "nodes"),
    "no counters": ("  needs.ginCounterCount = 1;\n", ""),
    "a signal for half of the senders": ("ginSignalCount = nodes", "ginSignalCount = nodes / 2"),
    "signal of the receiver": ("(ncclGinSignal_t)me}", "(ncclGinSignal_t)to}"),
    "all lanes put": (", ncclCoopWarp()", ", ncclCoopThread()"),
    "each warp puts to all": ("int to = warp; to < nodes; to += WARPS", "int to = 0; to < nodes; to++"),
    "parcel in items": ("depot.items * sizeof(double);\n  __shared__", "depot.items;\n  __shared__"),
    "place of the receiver": (PUT, PUT.replace("me * parcel", "to * parcel")),
    "the own parcel for all": (PUT, PUT.replace("to * parcel", "me * parcel")),
    "windows swapped": (
        PUT,
        PUT.replace("arriving, me * parcel, depot.leaving", "leaving, me * parcel, depot.arriving"),
    ),
    "window of one parcel": ("in_tray, volume, &depot", "in_tray, volume / nodes, &depot"),
    "memory of items": ("ncclMemAlloc(&in_tray, volume)", "ncclMemAlloc(&in_tray, depot.items * nodes)"),
    "no gate": (GATE, ""),
    "no barrier for the gate": ("  needs.worldGinBarrierCount = 1;\n", ""),
    "connections of the rail": ("NCCL_GIN_CONNECTION_FULL", "NCCL_GIN_CONNECTION_RAIL"),
    "ships on odd nodes": (SHIP, f"if (node % 2) {SHIP}"),
    "days of the node": ("day < 12", "day < 12 + node"),
    "inspects on the yard": ("inspect<<<grid, 256, 0, belt>>>", "inspect<<<grid, 256, 0, yard>>>"),
}
OFF = "send_off<<<LANES, 128, 0, main_stream>>>(dev, win_mine, win_theirs, chunk);"
IN = "take_in<<<LANES, 32, 0, main_stream>>>(dev);"
WIRE = "wire.put(team, peer, dst, team.rank * chunk + lane, src, peer * chunk + lane, slice, ncclGin_SignalInc{blockIdx.x});"
RELAYS: dict[str, tuple[str, ...]] = {
    "takes in for one block fewer": (IN, IN.replace("LANES, 32", "LANES - 1, 32")),
    "nothing takes in": (f"    {IN}\n", ""),
    "takes in on the side": (IN, IN.replace("main_stream", "side_stream")),
    "takes in before it sends off": (OFF, IN, f"    {IN}\n    add_up", f"    {OFF}\n    add_up"),
    "shadow of one": ("increaseSignalShadow(blockIdx.x, comm.nRanks)", "increaseSignalShadow(blockIdx.x, 1)"),
    "shadow by every thread": ("  if (threadIdx.x == 0) wire.increase", "  wire.increase"),
    "shadow of another signal": (
        "waitSignalMeetShadow(ncclCoopCta(), blockIdx.x)",
        "waitSignalMeetShadow(ncclCoopCta(), 0)",
    ),
    "shadow is never raised": ("  if (threadIdx.x == 0) wire.increaseSignalShadow(blockIdx.x, comm.nRanks);\n", ""),
    "signals of one lane": ("ginSignalCount = LANES", "ginSignalCount = 1"),
    "more lanes than barriers": ("worldGinBarrierCount = LANES", "worldGinBarrierCount = LANES / 2"),
    "no flush": ("  wire.flush(ncclCoopCta());\n", ""),
    "no signal": (WIRE, WIRE.replace(", ncclGin_SignalInc{blockIdx.x}", "")),
    "lane is left out": (WIRE, WIRE.replace("team.rank * chunk + lane", "team.rank * chunk")),
    "slices of the whole": (WIRE, WIRE.replace("slice, nccl", "chunk, nccl")),
    "chunk in elements": (
        "const size_t chunk = 32768 * sizeof(int), whole = chunk * world",
        "const size_t chunk = 32768, whole = chunk * world * sizeof(int)",
    ),
    "the own rank is left out": (
        "(team.rank + threadIdx.x) % team.nRanks",
        "(team.rank + 1 + threadIdx.x) % (team.nRanks - 1)",
    ),
    "threads fewer than ranks": ("if (threadIdx.x < team.nRanks)", "if (threadIdx.x == 0)"),
    "sends off on the first rank": (OFF, f"if (self == 0) {OFF}"),
    "makes on the side": ("make<<<32, 256, 0, main_stream>>>", "make<<<32, 256, 0, side_stream>>>"),
}
