"""Pages of Nsight Compute, captured on an H200, trimmed to the columns that are read; and junk."""

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_mcp_server.profilers import ncu

DATA = Path(__file__).parent / "data" / "ncu"


def page(name: str) -> str:
    return (DATA / name).read_text()


def kernels():
    return ncu.merged(
        ncu.parse_raw(page("raw.csv")), ncu.parse_details(page("details.csv")), ncu.parse_source(page("source.csv"))
    )


def test_each_kernel_has_time_shape_device_and_metrics_in_base_units():
    naive, tiled, saxpy, transpose = kernels()
    assert [k.name for k in (naive, tiled, saxpy, transpose)] == [
        "sgemm_naive",
        "sgemm_tiled<32>",
        "saxpy",
        "transpose_bad",
    ]
    assert (naive.time_us, naive.grid, naive.block, naive.device) == (2729.792, "64x64", "32x32", "NVIDIA H200")
    assert saxpy.metrics["dram__bytes.sum.per_second"] == 3336559880645.60
    assert tiled.metrics["l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed"] == 91.50
    assert max(tiled.stalls, key=lambda k: tiled.stalls[k]) == "mio_throttle"


def test_prefixed_units_are_multiplied_out():
    text = '"ID","Kernel Name","gpu__time_duration.sum","a","b"\n"","","msecond","Gbyte/second","Kbyte/block"\n"0","k(int)","2.5","1.5","3"\n'
    (kernel,) = ncu.parse_raw(text).values()
    assert (kernel.time_us, kernel.metrics["a"], kernel.metrics["b"]) == (2500, 1.5e9, 3000)


def test_the_table_is_found_behind_the_programs_own_output():
    (kernel,) = ncu.parse_raw(page("mixed.txt")).values()
    assert (kernel.name, kernel.time_us) == ("sgemm_naive", 2729.312)


def test_rules_carry_the_profilers_estimate():
    naive = kernels()[0]
    (rule,) = [r for r in naive.rules if r.name == "MemoryCacheAccessPattern"]
    assert (rule.kind, rule.scope, rule.speedup_percent) == ("OPT", "global", 13.2)
    assert any(r.kind == "INF" and r.speedup_percent is None for r in naive.rules)


def test_hot_lines_have_text_and_the_stalls_by_their_full_names():
    tiled = kernels()[1]
    first = tiled.lines[0]
    assert (first.line, first.samples, first.text[:22]) == (19, 171693, "for(int k=0;k<T;++k) s")
    assert max(first.stalls, key=lambda k: first.stalls[k]) == "mio_throttle"
    assert not {"selected", "not_selected"} & first.stalls.keys()
    assert kernels()[0].lines == []


def test_closed_counters_are_named_with_the_way_to_open_them():
    text = "==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters\n"
    (said,) = ncu.troubles(text)
    assert "ERR_NVGPUCTRPERM" in said and "NVreg_RestrictProfilingToAdminUsers=0" in said
    assert "name in `kernel`" in ncu.troubles("==WARNING== No kernels were profiled.")[0]
    assert ncu.troubles("==ERROR== The application returned an error code (11).") == [
        "The application returned an error code (11)."
    ]
    assert ncu.troubles("==PROF== Disconnected") == []


def test_the_report_as_our_reader_wrote_it_keeps_breakdowns_rules_and_lines():
    metrics = {
        "gpu__time_duration.sum": 5000,
        "sm__throughput.avg.x": None,
        "bad": "NaN",
        ncu.BREAKDOWNS[0]: "dram__a.avg.b, lts__c.avg.d",
    }
    rule = {"name": "r", "section": "s", "kind": "OPT", "text": "t", "scope": "global", "speedup_percent": 12.0}
    line = {"file": "k.cu", "line": 3, "samples": 9, "text": "x", "stalls": {"wait": 9}}
    kernel = {
        "Kernel Name": "void k<(int)4>(float *)",
        "Grid Size": "(8, 1, 1)",
        "metrics": metrics,
        "rules": [rule],
        "lines": [line],
    }
    (read,) = ncu.parse_report(json.dumps({"kernels": [kernel, {"rules": [{"nonsense": 1}]}, 7]}))
    assert (read.name, read.time_us, read.grid) == ("k<4>", 5, "8")
    assert read.breakdowns == {"sm__throughput.avg.pct_of_peak_sustained_elapsed": ["dram__a.avg.b", "lts__c.avg.d"]}
    assert read.rules[0].speedup_percent == 12 and read.lines[0].stalls == {"wait": 9}


def test_options_choose_the_kernel_and_leave_the_clocks_alone():
    argv = ncu.options("standard", "regex:sgemm", 2, 1)
    assert argv[:2] == ["--clock-control", "none"]
    assert argv[-6:] == ["-k", "regex:sgemm", "--launch-skip", "2", "--launch-count", "1"]
    assert "full" in ncu.options("full", None, 0, 1)


PAGES = [path.read_text() for path in sorted(DATA.iterdir())]
JUNK = st.one_of(
    st.text(max_size=300),
    st.builds(
        lambda p, n, junk: p[: n % len(p)] + junk, st.sampled_from(PAGES), st.integers(0, 1 << 20), st.text(max_size=60)
    ),
    st.builds(
        lambda p, n, junk: p[: n % len(p)] + junk + p[n % len(p) :],
        st.sampled_from(PAGES),
        st.integers(0, 1 << 20),
        st.text(max_size=9),
    ),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=9)),
    lambda c: st.one_of(
        st.lists(c, max_size=4),
        st.dictionaries(st.sampled_from(["kernels", "metrics", "rules", "lines", "Kernel Name", "x"]), c, max_size=4),
    ),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(JUNK)
def test_no_junk_makes_it_raise(text: str):
    ncu.merged(ncu.parse_raw(text), ncu.parse_details(text), ncu.parse_source(text))
    ncu.troubles(text)
    ncu.parse_report(text)


@settings(max_examples=200, deadline=None)
@given(JSON)
def test_no_document_makes_it_raise(document: object):
    ncu.parse_report(json.dumps(document))
