"""One fault each, planted in two right programs: an all-to-all by LSA and one by GIN."""

from pathlib import Path

from tests.nccl.mutations_of_parcels import PARCELS, RELAYS
from tests.nccl.mutations_of_seats import DEALS, MAILS
from tests.nccl.mutations_of_shares import PULLS, SHARES

CLEAN = Path(__file__).parent / "clean"
BARRIER = "  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);\n"
LAST = BARRIER + "}\n\nint main"
FIRST = BARRIER + "  const int me"
LAUNCH = "swap_blocks<<<16, 512, 0, stream>>>(dc, out, in, each);"
PUTS = "put_blocks<<<16, 512, 0, stream>>>(dc, out, in, each);"
GIN_BARRIER = "  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);\n"
READ = "  const uint64_t before = gin.readSignal(signal);\n"
WAIT = "  gin.waitSignal(ncclCoopCta(), signal, before + world.nRanks);\n"
THEIRS = "(in, (size_t)me * each * sizeof(float), peer)"
MINE = "mine[(size_t)peer * each + i]"

LSA: dict[str, tuple[str, str]] = {
    "no first barrier": (FIRST, "  const int me"),
    "no last barrier": (LAST, "}\n\nint main"),
    "last barrier relaxed": (LAST, LAST.replace("acq_rel", "relaxed")),
    "first barrier relaxed": (FIRST, FIRST.replace("acq_rel", "relaxed")),
    "fewer barriers than blocks": ("lsaBarrierCount = 16", "lsaBarrierCount = 8"),
    "barrier of one warp": (LAST, "  if (threadIdx.x < 32)" + LAST),
    "barrier of one rank": (LAST, "  if (me == 0)" + LAST),
    "one barrier for all blocks": ("ncclTeamTagLsa(), blockIdx.x)", "ncclTeamTagLsa(), 0)"),
    "offset in elements": (THEIRS, THEIRS.replace(" * sizeof(float)", "")),
    "slot of the peer": (THEIRS, THEIRS.replace("(size_t)me", "(size_t)peer")),
    "source slot of the own rank": (MINE, MINE.replace("peer", "me")),
    "windows swapped": (LAUNCH, LAUNCH.replace("out, in", "in, out")),
    "one window twice": (LAUNCH, LAUNCH.replace("out, in", "out, out")),
    "window of one block": ("comm, got, bytes, &in", "comm, got, each * sizeof(float), &in"),
    "window in elements": ("comm, got, bytes, &in", "comm, got, each * ranks, &in"),
    "memory of one block": ("&got, bytes", "&got, each * sizeof(float)"),
    "own block left out": ("for (int k = 0; k < n; k++)", "for (int k = 1; k < n; k++)"),
    "launch of one rank": (LAUNCH, f"if (rank == 0) {LAUNCH}"),
    "more launches on some ranks": ("round < 10; round++", "round < 10 + rank; round++"),
    "consumer on another stream": ("consume<<<64, 256, 0, stream>>>", "consume<<<64, 256, 0, other>>>"),
    "producer on another stream": ("produce<<<64, 256, 0, stream>>>", "produce<<<64, 256, 0, other>>>"),
}
GIN: dict[str, tuple[str, str]] = {
    "signal without its value before": ("before + world.nRanks", "(uint64_t)world.nRanks"),
    "fewer signals than blocks": ("ginSignalCount = 16", "ginSignalCount = 8"),
    "waits for one signal too many": ("before + world.nRanks", "before + world.nRanks + 1"),
    "waits for one signal too few": ("before + world.nRanks", "before + world.nRanks - 1"),
    "one signal for all blocks": ("signal = blockIdx.x", "signal = 0"),
    "signal read late": (READ + "  ncclGinBarrier", "  ncclGinBarrier"),
    "no flush": ("  gin.flush(ncclCoopCta());\n", ""),
    "puts without a signal": (",\n            ncclGin_SignalInc{signal})", ")"),
    "nothing waits for the signal": (WAIT, ""),
    "one thread puts": ("  for (int peer", "  if (threadIdx.x == 0) for (int peer"),
    "no connections": ("NCCL_GIN_CONNECTION_FULL", "NCCL_GIN_CONNECTION_NONE"),
    "connections not asked for": ("  wanted.ginConnectionType = NCCL_GIN_CONNECTION_FULL;\n", ""),
    "put's offset in elements": ("world.rank * each * sizeof(float)", "world.rank * each"),
    "put's size in elements": ("part = each * sizeof(float) / gridDim.x", "part = each / gridDim.x"),
    "put into the peer's own slot": ("(size_t)world.rank * each", "(size_t)peer * each"),
    "no first barrier": (GIN_BARRIER, ""),
    "fewer barriers than blocks": ("worldGinBarrierCount = 16", "worldGinBarrierCount = 4"),
    "windows swapped": (PUTS, PUTS.replace("out, in", "in, out")),
    "puts to the LSA team": ("gin.put(world,", "gin.put(ncclTeamLsa(dc),"),
    "launch of one rank": (PUTS, f"if (rank == 0) {PUTS}"),
}


def mutated() -> dict[str, str]:
    """Return each mutated program by name."""
    found: dict[str, str] = {}
    for base, changes in (("lsa", LSA), ("gin", GIN)):
        text = (CLEAN / f"mutated_{base}.cu").read_text(encoding="utf-8")
        for name, (old, new) in changes.items():
            assert text.count(old) == 1, (base, name, text.count(old))
            changed = text.replace(old, new)
            if name == "signal read late":
                changed = changed.replace("  const ncclTeam world", READ + "  const ncclTeam world")
            found[f"{base}: {name}"] = changed
    for base, pairs in (
        ("pull", PULLS),
        ("puts", SHARES),
        ("deal", DEALS),
        ("mail", MAILS),
        ("parcel", PARCELS),
        ("relay", RELAYS),
    ):
        text = (CLEAN / f"mutated_{base}.cu").read_text(encoding="utf-8")
        for name, parts in pairs.items():
            changed = text
            for old, new in zip(parts[::2], parts[1::2], strict=True):
                assert changed.count(old) == 1, (base, name, changed.count(old))
                changed = changed.replace(old, new)
            found[f"{base}: {name}"] = changed
    return found
