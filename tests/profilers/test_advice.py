"""The first advice: an expert's in textbook situations, never beyond what was counted, with a section of our guides."""

import re
from pathlib import Path

import pytest

from gpu_mcp_server.models.profile import KernelReading, Rule
from gpu_mcp_server.profilers import bottleneck, rocprof_compute
from gpu_mcp_server.profilers.guide_links import LINKS, UNIT_LINKS
from gpu_mcp_server.profilers.hardware_units import HELP, PERCENT
from gpu_mcp_server.profilers.ncu_rules import TOPICS
from tests.profilers.textbook import DATA, outcomes

GUIDES = Path(__file__).parents[2] / "knowledge_base" / "guides"


@pytest.mark.parametrize("file", sorted(p.name for p in DATA.glob("*.toml")))
def test_the_first_advice_is_an_experts_in_14_of_15_and_harms_nowhere(file: str):
    found = outcomes(file)
    assert len(found) == 15
    assert [o for o in found if o.harmful] == []
    assert sum(o.right for o in found) >= 14, [o for o in found if not o.right]


def test_each_link_leads_to_a_section_of_a_guide():
    for guide, section in LINKS.values():
        assert f"\n## {section}\n" in (GUIDES / f"{guide}.md").read_text(), (guide, section)
    assert set(UNIT_LINKS.values()) | {topic for topic, _ in TOPICS.values()} <= set(LINKS)
    assert set(UNIT_LINKS) == set(HELP)


@pytest.mark.parametrize("file", sorted(p.name for p in DATA.glob("*.toml")))
def test_each_advice_has_its_link(file: str):
    for outcome in outcomes(file):
        assert re.search(r"\[guide [\w-]+: [^\]]+\]$", outcome.advised), outcome


def first(metrics: dict[str, float], stalls: dict[str, float] | None = None, rules: list[Rule] | None = None) -> str:
    reading = KernelReading(name="k", time_us=100.0, metrics=metrics, stalls=stalls or {}, rules=rules or [])
    return bottleneck.kernel_verdict(reading).advice[0]


def test_a_busy_load_store_unit_alone_names_no_cause():
    said = first({f"l1tex__data_pipe_lsu_wavefronts{PERCENT}": 80.0})
    assert said.startswith("not enough counters to say what fills the load/store unit")


def test_a_kernel_that_spills_is_not_told_to_hold_more_in_registers():
    """Nothing but local accesses was counted beside a busy load/store unit."""
    metrics = {
        f"l1tex__data_pipe_lsu_wavefronts{PERCENT}": 74.0,
        f"lts__t_sectors{PERCENT}": 60.0,
        "smsp__inst_executed_op_local_st.sum": 3e7,
        "smsp__inst_executed_op_local_ld.sum": 4e7,
    }
    found = bottleneck.kernel_verdict(
        KernelReading(name="k", time_us=90.0, metrics=metrics, stalls={"long_scoreboard": 12.0, "lg_throttle": 9.0})
    )
    assert found.advice[0].startswith("stop the spills") and "launch bounds" in found.advice[0]
    assert not any("register tiles" in a for a in found.advice)


def test_what_may_spill_is_not_told_to_keep_more_in_registers():
    unit = {f"l1tex__data_pipe_lsu_wavefronts{PERCENT}": 75.0, "launch__registers_per_thread": 255.0}
    said = first(unit, {"lg_throttle": 20.0, "long_scoreboard": 20.0})
    assert said.startswith("see at level full whether registers spill") and "kept in registers" not in said
    full = {f"dram__cycles_active{PERCENT}": 85.0, "smsp__inst_executed_op_local_st.sum": 1e7}
    found = bottleneck.kernel_verdict(KernelReading(name="k", metrics=full))
    assert len(found.advice) == 2 and not any("keep values in registers" in a for a in found.advice)


def test_warps_that_fit_and_are_not_there_point_to_uneven_work():
    metrics = {
        f"dram__cycles_active{PERCENT}": 30.0,
        "sm__warps_active.avg.pct_of_peak_sustained_active": 35.0,
        "sm__maximum_warps_per_active_cycle_pct": 100.0,
        "launch__occupancy_limit_warps": 8.0,
    }
    assert first(metrics, {"long_scoreboard": 20.0}).startswith("35 % of warps are active where 100 % fit")


def test_atomics_to_many_addresses_do_not_hide_a_full_memory():
    said = first(
        {
            f"dram__cycles_active{PERCENT}": 92.0,
            f"lts__t_sectors{PERCENT}": 50.0,
            "smsp__inst_executed_op_global_red.sum": 1e6,
            "smsp__inst_executed_op_global_ld.sum": 3e6,
            "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio": 32.0,
        }
    )
    assert said.startswith("move fewer bytes")


def test_a_share_that_was_not_counted_is_not_said():
    said = first({f"lts__t_sectors{PERCENT}": 85.0, "smsp__inst_executed_op_global_red.sum": 4e7})
    assert said.startswith("4e+07 atomics on global memory (what else it moves was not counted): privatize")
    assert "%" not in said.split("[guide")[0]


def test_sectors_a_request_are_no_bytes_used():
    """Sixteen sectors are whole for 16 bytes a lane; thirty-two are not whole for any."""
    name = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"
    metrics = {f"dram__cycles_active{PERCENT}": 80.0}
    assert "coalesce:" not in first({**metrics, name: 16.0})
    assert first({**metrics, name: 32.0}).startswith("coalesce: a warp's request touches 32 loaded sectors")


def test_a_local_rule_of_the_profiler_counts_and_says_that_it_is_local():
    rule = Rule(
        name="ThreadDivergence", kind="OPT", scope="local", speedup_percent=70, text="Only 9 threads are active. More."
    )
    said = first({f"sm__inst_issued{PERCENT}": 40.0}, rules=[rule])
    assert said.startswith("give the threads of a warp the same branch") and "(ncu: 70 % of that part)" in said


def test_headlines_name_a_unit_and_not_its_part():
    found = bottleneck.kernel_verdict(KernelReading(name="k", metrics={f"sm__throughput{PERCENT}": 85.0}))
    assert found.bound == "SM (which pipe was not counted)" and found.advice[0].startswith("not enough counters")
    assert (
        bottleneck.kernel_verdict(KernelReading(name="k", metrics={f"dram__throughput{PERCENT}": 85.0})).bound == "DRAM"
    )


def amd(*rows: str) -> str:
    table = "\n".join(["Metric,Avg,Unit,Peak,Pct of Peak", *rows]) + "\n"
    (kernel,) = rocprof_compute.parse_compute({"2.1_Speed-of-Light.csv": table})
    return bottleneck.kernel_verdict(kernel).advice[0]


def test_amds_tables_tell_causes_apart_too():
    low = "L2-Fabric Read BW,300,Gb/s,1638.4,18.3"
    assert amd(low, "VALU Active Threads,11,Threads,64,17").startswith("warps diverge: 11 of 64 threads")
    assert amd("LDS Utilization,80,Pct,100,80", "LDS Bank Conflicts/Access,3,Conflicts/access,32,9").startswith(
        "bank conflicts are 75 %"
    )
    assert amd("vL1D Cache BW,9000,Gb/s,11315,79", "Coalescing,25,Pct,100,25").startswith("coalesce: 8 of 32 bytes")
    assert amd(low, "Active CUs,10,Cus,104,9.6").startswith("the grid fills 10 % of the device")
    assert amd(low).startswith("not enough counters to advise: a report of rocprof-compute")
    assert amd(low, "VALU Active Threads,64,Threads,64,100").startswith("not enough counters")
