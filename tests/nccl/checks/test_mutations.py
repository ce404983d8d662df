"""One fault in a right program is an error of the rule that is for it; the right programs raise none."""

import pytest

from gpu_mcp_server.nccl.checks import rules
from gpu_mcp_server.nccl.checks.findings import Finding
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from tests.nccl.mutations import CLEAN, mutated

NOTED = "pull: world's ranks in the LSA team"
"""Right where all ranks are one team, so it is a note."""
ALL = mutated()
MUTATED = {name: text for name, text in ALL.items() if name != NOTED}
RULES = {"offset": "offsets", "slot": "offsets", "size in": "offsets", "stream": "streams", "swapped": "streams"}


def errors(text: str) -> list[Finding]:
    return [f for f in rules.findings(ProgramModel.read({"main.cu": text}, "main.cu")) if f.severity == "error"]


def test_there_are_thirty_six_of_each_style():
    for styles in (("lsa", "gin"), ("pull", "puts"), ("deal", "mail"), ("parcel", "relay")):
        assert len([name for name in ALL if name.startswith(styles)]) >= 36


def test_a_peer_of_the_world_in_the_team_is_noted():
    found = rules.findings(ProgramModel.read({"main.cu": ALL[NOTED]}, "main.cu"))

    assert any("world's rank" in f.text for f in found) and {f.severity for f in found} == {"note"}


@pytest.mark.parametrize("name", MUTATED)
def test_a_mutation_is_caught(name: str):
    found = errors(MUTATED[name])

    assert found != []
    wanted = next((rule for word, rule in RULES.items() if word in name), None)
    assert wanted is None or wanted in {f.rule for f in found}


PULL = (CLEAN / "mutated_pull.cu").read_text(encoding="utf-8")
DEAL, MAIL = ((CLEAN / f"mutated_{n}.cu").read_text(encoding="utf-8") for n in ("deal", "mail"))
LSA, GIN = ((CLEAN / f"mutated_{n}.cu").read_text(encoding="utf-8") for n in ("lsa", "gin"))
SAME = {
    "a helper's call over two lines": (DEAL, "place_of<int>(to, seat,", "place_of<int>(to,\n seat,"),
    "a helper with a statement more": (
        DEAL,
        "  return static_cast<T*>",
        "  if (count == 0) return nullptr;\n  return static_cast<T*>",
    ),
    "a while loop that goes round from the next": (DEAL, "while (hop < seats)", "while (hop <= seats - 1)"),
    "one thread of a block that puts": (MAIL, "ncclGin_None{}, all);", "ncclGin_None{}, ncclCoopCta());"),
    "another stream that waits": (
        LSA,
        "    consume<<<64, 256, 0, stream>>>",
        "    cudaEventRecord(ready, stream); cudaStreamWaitEvent(other, ready, 0);\n    consume<<<64, 256, 0, other>>>",
    ),
    "the default stream": (LSA, "consume<<<64, 256, 0, stream>>>", "consume<<<64, 256>>>"),
    "a byte offset by a variable": (
        LSA,
        "(size_t)me * each * sizeof(float), peer",
        "me * (each * sizeof(float)), peer",
    ),
    "a ring that loads into the own slot": (
        PULL,
        "  for (int step = 0; step < parties; step++) {\n    const int from = (self + step) % parties;",
        "  {\n    const int from = (self + 1) % parties;",
    ),
    "a bound in bytes": (PULL, "for (size_t i = first; i < length;", "for (size_t i = first; i * 8 < span;"),
    "a second window where all have one": (
        PULL,
        "  ncclDevCommRequirements needs",
        "  ncclWindow_t third;\n  NCCL_TRY(ncclCommWindowRegister(comm, incoming, size, &third, NCCL_WIN_COLL_SYMMETRIC));\n"
        "  NCCL_TRY(ncclCommWindowDeregister(comm, third));\n  ncclDevCommRequirements needs",
    ),
    "places from a table of peers": (
        GIN,
        "(size_t)world.rank * each * sizeof(float) + at, out,",
        "places[peer] + at, out,",
    ),
    "places from records of peers": (
        GIN,
        "(size_t)world.rank * each * sizeof(float) + at, out,",
        "records[peer].place + at, out,",
    ),
    "a signal that is reset": (GIN, "before + world.nRanks);", "world.nRanks); gin.resetSignal(signal);"),
    "another number of signals": (GIN, "ginSignalCount = 16", "ginSignalCount = 32"),
}


@pytest.mark.parametrize(("text", "old", "new"), SAME.values(), ids=SAME.keys())
def test_what_is_right_in_another_way_raises_no_alarm(text: str, old: str, new: str):
    assert text.count(old) == 1

    assert errors(text.replace(old, new)) == []


def test_a_counter_in_the_place_of_a_flush_is_right_where_it_is_waited_for():
    counted = GIN
    for old, new in (
        ("ncclGin_SignalInc{signal});\n", "ncclGin_SignalInc{signal}, ncclGin_CounterInc{signal});\n"),
        ("  const uint64_t before", "  const uint64_t left = gin.readCounter(signal);\n  const uint64_t before"),
        ("gin.flush(ncclCoopCta());", "gin.waitCounter(ncclCoopCta(), signal, left + world.nRanks);"),
        ("  wanted.ginSignalCount", "  wanted.ginCounterCount = 16;\n  wanted.ginSignalCount"),
    ):
        assert counted.count(old) == 1, old
        counted = counted.replace(old, new)

    assert errors(counted) == []
    lost = [
        f.text for f in errors(counted.replace("  gin.waitCounter(ncclCoopCta(), signal, left + world.nRanks);\n", ""))
    ]
    assert len(lost) == 1 and "nothing flushes these puts" in lost[0]


def test_a_loop_that_ends_before_the_last_peer_is_caught():
    loop = "for (int k = 0; k < n; k++) {\n    int peer = (me + k) % n;"
    assert loop in LSA
    short = LSA.replace(loop, "for (int peer = 0; peer < n - 1; peer++) {")

    assert [f.rule for f in errors(short)] == ["offsets"]
    assert errors(short.replace("n - 1", "n")) == []
