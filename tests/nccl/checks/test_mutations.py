"""One fault in a right program is an error of the rule that is for it; the right programs raise none."""

import pytest

from gpu_mcp_server.nccl.checks import rules
from gpu_mcp_server.nccl.checks.findings import Finding
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from tests.nccl.mutations import CLEAN, mutated

MUTATED = mutated()
RULES = {"offset": "offsets", "slot": "offsets", "size in": "offsets", "stream": "streams", "swapped": "streams"}


def errors(text: str) -> list[Finding]:
    return [f for f in rules.findings(ProgramModel.read({"main.cu": text}, "main.cu")) if f.severity == "error"]


def test_there_are_at_least_thirty_six():
    assert len(MUTATED) >= 36


@pytest.mark.parametrize("name", MUTATED)
def test_a_mutation_is_caught(name: str):
    found = errors(MUTATED[name])

    assert found != []
    wanted = next((rule for word, rule in RULES.items() if word in name), None)
    assert wanted is None or wanted in {f.rule for f in found}


LSA, GIN = ((CLEAN / f"mutated_{n}.cu").read_text(encoding="utf-8") for n in ("lsa", "gin"))
SAME = {
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
    "a signal that is reset": (GIN, "before + world.nRanks);", "world.nRanks); gin.resetSignal(signal);"),
    "another number of signals": (GIN, "ginSignalCount = 16", "ginSignalCount = 32"),
    "a counter in the place of a flush": (
        GIN,
        "ncclGin_SignalInc{signal});\n",
        "ncclGin_SignalInc{signal}, ncclGin_CounterInc{signal});\n",
    ),
}


@pytest.mark.parametrize(("text", "old", "new"), SAME.values(), ids=SAME.keys())
def test_what_is_right_in_another_way_raises_no_alarm(text: str, old: str, new: str):
    assert text.count(old) == 1

    changed = text.replace(old, new)
    assert errors(changed if "Counter" not in new else changed.replace("  gin.flush(ncclCoopCta());\n", "")) == []


def test_a_loop_that_ends_before_the_last_peer_is_caught():
    loop = "for (int k = 0; k < n; k++) {\n    int peer = (me + k) % n;"
    assert loop in LSA
    short = LSA.replace(loop, "for (int peer = 0; peer < n - 1; peer++) {")

    assert [f.rule for f in errors(short)] == ["offsets"]
    assert errors(short.replace("n - 1", "n")) == []
