"""Pages of Nsight Compute, captured by data/capture.py and cut to the columns that are read; and junk."""

import csv
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_mcp_server.profilers import ncu
from gpu_mcp_server.workers import run_profiler

DATA = Path(__file__).parent / "data" / "ncu"


def page(name: str) -> str:
    return (DATA / name).read_text()


def kernels():
    return ncu.merge_pages(
        ncu.parse_raw(page("raw.csv")), ncu.parse_details(page("details.csv")), ncu.parse_source(page("source.csv"))
    )


def cell(name: str, kernel: str, column: str) -> float:
    """Read one number of a page in another way than the package does."""
    text = page(name)
    rows = list(csv.DictReader(io.StringIO(text[text.index('"ID",') :])))
    (found,) = [r[column] for r in rows if kernel in (r["Kernel Name"] or "")]
    return float(found.replace(",", ""))


def cell_unit(name: str, column: str) -> str:
    """Return what stands below a column's name."""
    text = page(name)
    header, units = list(csv.reader(io.StringIO(text[text.index('"ID",') :])))[:2]
    return units[header.index(column)]


def line_of(mark: str) -> int:
    """Return where the profiled program has a mark, counted from 1."""
    lines = (DATA.parent / "programs" / "kernels.cu").read_text().splitlines()
    (found,) = [n for n, line in enumerate(lines, 1) if line.endswith(f"// {mark}")]
    return found


def test_each_kernel_has_time_shape_device_and_metrics_in_base_units():
    product, tiled, saxpy, transpose = kernels()
    assert [k.name for k in (product, tiled, saxpy, transpose)] == ["product", "tiled<32>", "saxpy", "transpose"]
    time_ns = cell("raw.csv", "product", "gpu__time_duration.sum")
    assert (product.time_us, product.grid, product.block) == (time_ns / 1000, "64x64", "32x32")
    assert product.device and product.device.startswith("NVIDIA")
    bandwidth = "dram__bytes.sum.per_second"
    assert saxpy.metrics[bandwidth] == cell("raw.csv", "saxpy", bandwidth) > 1e12, "in bytes, not in gigabytes"
    assert max(tiled.stalls, key=lambda k: tiled.stalls[k]) == "mio_throttle"


def test_prefixed_units_are_multiplied_out():
    text = '"ID","Kernel Name","gpu__time_duration.sum","a","b"\n"","","msecond","Gbyte/second","Kbyte/block"\n"0","k(int)","2.5","1.5","3"\n'
    (kernel,) = ncu.parse_raw(text).values()
    assert (kernel.time_us, kernel.metrics["a"], kernel.metrics["b"]) == (2500, 1.5e9, 3000)


def test_the_table_is_found_behind_the_programs_own_output():
    assert not page("mixed.txt").startswith('"ID"') and "profiled: no error" in page("mixed.txt")
    (kernel,) = ncu.parse_raw(page("mixed.txt")).values()
    assert kernel.name == "saxpy" and kernel.time_us is not None
    unit_ns = {"ns": 1, "us": 1e3, "ms": 1e6}[cell_unit("mixed.txt", "gpu__time_duration.sum")]
    assert kernel.time_us == pytest.approx(cell("mixed.txt", "saxpy", "gpu__time_duration.sum") * unit_ns / 1000)


def test_rules_carry_the_profilers_estimate():
    transpose = kernels()[3]
    rule = next(r for r in transpose.rules if r.name == "UncoalescedGlobalAccess")
    assert (rule.kind, rule.scope) == ("OPT", "global") and "excessive sectors" in rule.text
    rows = list(csv.DictReader(io.StringIO(page("details.csv"))))
    said = [r["Estimated Speedup"] for r in rows if r["Rule Name"] == rule.name and "transpose" in r["Kernel Name"]]
    assert rule.speedup_percent in [float(s) for s in said if s]
    assert any(r.kind == "INF" and r.speedup_percent is None for k in kernels() for r in k.rules)


def test_hot_lines_have_text_and_the_stalls_by_their_full_names():
    tiled = kernels()[1]
    first = tiled.lines[0]
    assert (first.line, first.text[:27]) == (line_of("HOT"), "for (int i = 0; i < T; ++i)")
    assert first.samples > sum(line.samples for line in tiled.lines[1:])
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


def test_ncus_own_reader_and_its_pages_say_the_same():
    read, pages = ncu.parse_report(page("report.json")), kernels()
    assert [k.name.partition("<")[0] for k in read] == [k.name.partition("<")[0] for k in pages]
    for mine, csvs in zip(read, pages, strict=True):
        assert mine.time_us == csvs.time_us and (mine.grid, mine.block) == (csvs.grid, csvs.block)
        assert {r.name for r in csvs.rules} <= {r.name for r in mine.rules}
        shared = mine.metrics.keys() & csvs.metrics.keys()
        assert len(shared) > 100
        for name in shared:
            assert mine.metrics[name] == pytest.approx(csvs.metrics[name], rel=0.01, abs=0.006), name
    assert read[1].breakdowns, "the pages have none"
    assert (read[1].lines[0].line, read[1].lines[0].text) == (line_of("HOT"), pages[1].lines[0].text)


class Action:
    """One kernel of a report, as ncu's module gives it."""

    NameBase_DEMANGLED = 1

    def name(self, base: int = 0) -> str:
        return "void tiled<(int)32>(float *, int)" if base == 1 else "tiled"

    def metric_names(self) -> list[str]:
        return []

    def metric_by_name(self, name: str) -> None:
        return None

    def rule_results_as_dicts(self) -> list[dict[str, object]]:
        return []


def test_a_kernel_of_a_report_keeps_its_template_arguments(monkeypatch: pytest.MonkeyPatch):
    one_range = SimpleNamespace(num_actions=lambda: 1, action_by_idx=lambda n: Action())
    report = SimpleNamespace(num_ranges=lambda: 1, range_by_idx=lambda n: one_range)
    monkeypatch.setitem(sys.modules, "ncu_report", SimpleNamespace(load_report=lambda path: report))
    (kernel,) = ncu.parse_report(json.dumps(run_profiler.read_report("r.ncu-rep")))
    assert kernel.name == "tiled<32>"
    monkeypatch.delattr(Action, "NameBase_DEMANGLED")
    (kernel,) = ncu.parse_report(json.dumps(run_profiler.read_report("r.ncu-rep")))
    assert kernel.name == "tiled", "an older module"


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
    ncu.merge_pages(ncu.parse_raw(text), ncu.parse_details(text), ncu.parse_source(text))
    ncu.troubles(text)
    ncu.parse_report(text)


@settings(max_examples=200, deadline=None)
@given(JSON)
def test_no_document_makes_it_raise(document: object):
    ncu.parse_report(json.dumps(document))
