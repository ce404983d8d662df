"""Programs in styles that hide a call, a buffer, a group or a loop, and the answers of a reader of each."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from gpu_mcp_server.models.collective import CollectiveGraph
from gpu_mcp_server.models.transform import TransformResult
from gpu_mcp_server.nccl.analysis.communication_graph import Analysis
from gpu_mcp_server.nccl.analysis.graph_export import export_graph
from gpu_mcp_server.nccl.stages.transformation import transform

STYLES = Path(__file__).parents[1] / "styles"
RING_OF_TWO = "ncclSend init ncclRecv apply"


@dataclass(frozen=True)
class Answer:
    """Right answer about a program."""

    sites: str
    """Calls, each with who writes what it sends and who reads what it receives; `-` for nobody, `|` between calls."""
    a: int
    """Sites for which stage A can be done."""
    b: int
    left: str = ""
    """What the reasons must say."""


ANSWERS = {
    "raii_template": Answer("ncclAllReduce init apply", 1, 1),
    "function_table": Answer("", 0, 0, "its address is taken here"),
    "macro_group": Answer("ncclSend init | ncclRecv apply", 2, 0, "ring by ncclSend"),
    "lambda_ring": Answer("ncclSend init,ncclRecv | ncclRecv add,ncclSend", 2, 2),
    "split_call": Answer("ncclAllReduce init ncclBcast,apply | ncclBcast apply", 2, 2),
    "group_guard": Answer("ncclSend init | ncclRecv apply", 2, 2),
    "comm_grid": Answer("ncclAllReduce init ncclBroadcast | ncclBroadcast ncclAllReduce apply", 0, 0, "ncclCommSplit"),
    "own_operation": Answer("ncclAllReduce init apply", 1, 0, "mean may be an operation of the program's own"),
    "layers": Answer("ncclAllReduce backward,ncclAllReduce sgd,ncclAllReduce", 1, 0, "ncclAvg"),
    "managed": Answer("ncclBroadcast host? host?", 0, 0, "managed memory cannot be registered"),
    "streams_array": Answer("ncclAllGather init apply", 1, 1),
    "graph": Answer("ncclAllReduce init apply", 1, 0, "captures CUDA graphs"),
    "mpi_mix": Answer("ncclReduceScatter MPI_Recv MPI_Allreduce", 1, 1),
    "cpp20": Answer("ncclAllReduce init,unresolved? apply,unresolved?", 0, 0, "its allocation is not here"),
    "uneven_counts": Answer("ncclAllGather init apply", 0, 0, "its count mine depends on the rank"),
    "own_windows": Answer("ncclAllReduce init apply", 1, 1),
    "bench_function": Answer("ncclAllReduce init apply", 1, 1, "no place for a warm-up runs once"),
    "half_of_the_ranks": Answer(
        "ncclSend init | ncclRecv ncclAllReduce | ncclAllReduce ncclRecv apply", 2, 2, "`rank<ranks/2`"
    ),
    "one_pool": Answer("ncclAllReduce init apply", 1, 1),
    "if_call": Answer("ncclAllReduce init cudaMemcpyAsync", 1, 1),
    "device_vector": Answer("ncclAllReduce thrust::sequence thrust::reduce", 0, 0, "its allocation is not here"),
    "nonblocking": Answer("ncclAllReduce init apply", 0, 0, "does not block"),
    "index_flip": Answer("ncclAllReduce init,ncclAllReduce apply,ncclAllReduce", 1, 1),
    "variadic_wrapper": Answer(
        "ncclReduce init ncclBroadcast,apply | ncclBroadcast ncclReduce apply", 2, 1, "call ncclReduce directly"
    ),
    "leader_stage": Answer(
        "ncclReduce init apply | ncclBroadcast apply,init -", 0, 0, "its root me.group depends on the rank"
    ),
    "switch_of_kinds": Answer(
        "ncclAllReduce init apply | ncclAllGather init apply | ncclReduceScatter init apply", 3, 3
    ),
}


def given(name: str) -> dict[str, str]:
    return {"main.cu": (STYLES / f"{name}.cu").read_text(encoding="utf-8")}


@cache
def graph(name: str) -> CollectiveGraph:
    return export_graph(Analysis(given(name), "main.cu"))


@cache
def transformed(name: str) -> tuple[TransformResult, dict[str, str]]:
    return transform(given(name), "main.cu")


def partners(texts: list[str]) -> str:
    bare = sorted(
        {re.sub(r"[ :].*?(\?)?$", r"\1", t) if not t.startswith("thrust") else t[: t.rindex(":")] for t in texts}
    )
    return ",".join(bare) or "-"


def spelled(found: CollectiveGraph) -> str:
    sites: list[str] = []
    for site in found.sites:
        flows = [partners(b.producers if b.role == "send" else b.consumers) for b in site.buffers]
        sites.append(" ".join([site.call, *flows]))
    return " | ".join(sites)


def ordered(sites: str) -> str:
    words = [[",".join(sorted(w.split(","))) for w in site.split()] for site in sites.split("|")]
    return " | ".join(" ".join(w) for w in words)


def test_each_program_has_an_answer():
    assert {p.stem for p in STYLES.glob("*.cu")} == set(ANSWERS)


@pytest.mark.parametrize("name", ANSWERS)
def test_calls_writers_readers_and_stages_are_as_read(name: str):
    found, right = graph(name), ANSWERS[name]

    assert spelled(found) == ordered(right.sites)
    able = [sum(f.possible for f in fs) for fs in ([s.stage_a for s in found.sites], [s.stage_b for s in found.sites])]
    assert able == [right.a, right.b]
    assert right.left in " ".join(transformed(name)[0].needs_agent)
    assert bool(right.left) == bool(transformed(name)[0].needs_agent)


@pytest.mark.parametrize(("name", "says"), [("one_pool", False), ("own_windows", False), ("raii_template", True)])
def test_two_parts_of_one_allocation_are_not_called_in_place(name: str, says: bool):
    assert graph(name).sites[0].in_place is says


def test_a_warm_up_that_may_work_in_place_is_left_to_the_agent():
    text = given("one_pool")["main.cu"].replace("  NCCL_OK(ncclAll", "  MPI_Wtime();\n  NCCL_OK(ncclAll")
    result, _ = transform({"main.cu": text.replace("  apply<", "  MPI_Wtime();\n  apply<")}, "main.cu")

    assert any("may receive where it sends from" in left for left in result.needs_agent)


def test_set_up_stands_ahead_of_a_capture():
    text = transformed("graph")[1]["main.device.cu"]

    assert text.index("ncclx::register_all(") < text.index("cudaStreamBeginCapture(")


def test_a_guard_that_starts_and_ends_a_group_does_so_for_the_generated_exchange():
    text = transformed("group_guard")[1]["main.device.cu"]

    assert "GroupGuard() { NCCL_OK(ncclx::GroupStart()); } ~GroupGuard() { ncclx::GroupEnd(); }" in text


def test_a_lambda_runs_where_the_function_that_gets_it_calls_it():
    site = graph("bench_function").sites[0]

    assert site.phase == "timed" and site.function == "main > bench > main"
    assert len(site.loops) == 2


def test_a_lambda_that_no_function_here_calls_is_not_lost():
    text = given("bench_function")["main.cu"].replace("++i) run();", "++i) submit(run);")
    found = export_graph(Analysis({"main.cu": text}, "main.cu"))

    assert [s.call for s in found.sites] == ["ncclAllReduce"]
