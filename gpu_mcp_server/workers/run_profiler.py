"""Runs a program under a profiler and reads the report there, where it was made.

A report is the work of a hostile program as well, so it is read inside the sandbox: with ncu's own Python module where
it can be imported (in a process of its own, as it may crash), otherwise page by page as CSV.

Source: `ncu_report` as it comes with Nsight Compute 2025.3.1 and on PyPI: load_report, range_by_idx, action_by_idx,
name with NameBase_DEMANGLED,
metric_by_name, source_info, rule_results_as_dicts; rule message types 2 (optimization) and 3 (warning).
"""

import glob
import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

SAMPLES = "smsp__pcsamp_warps_issue_stalled_"
KINDS = {2: "OPT", 3: "WRN"}
SCOPES = {1: "local", 2: "global"}
MOST_KERNELS, MOST_LINES, MOST_FILES = 200, 200, 12
OUT_OF_TIME = 124
"""Exit code that stands for the limit. Source: timeout(1)."""


def run(argv: List[str], output: str = "", limit_s: Optional[float] = None) -> int:
    """Run a command, its output where ours goes or into a file; return its exit code, OUT_OF_TIME at the limit."""
    try:
        if not output:
            return subprocess.call(argv, stdin=subprocess.DEVNULL)
        with open(output, "wb") as out:
            return subprocess.call(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL, timeout=limit_s
            )
    except subprocess.TimeoutExpired:
        return OUT_OF_TIME
    except OSError as error:
        print("%s: %s" % (argv[0], error.strerror), file=sys.stderr)
        return 127


def name_of(action: Any) -> str:
    """Return a kernel's name with its template arguments; the plain name is the same for each instantiation."""
    try:
        return str(action.name(action.NameBase_DEMANGLED))
    except Exception:  # a version without it
        return str(action.name())


def value_of(metric: Any) -> Any:
    """Return a metric's number or text, None when it has none."""
    try:
        value = metric.value()
    except Exception:  # its classes differ from version to version
        return None
    return value if isinstance(value, (int, float, str)) else None


def metrics_of(action: Any) -> Dict[str, Any]:
    """Return all metrics by name."""
    found: Dict[str, Any] = {}
    for name in action.metric_names():
        metric = action.metric_by_name(name)
        value = value_of(metric) if metric is not None else None
        if value is not None:
            found[name] = value
    return found


def line_in(text: Any, number: int) -> str:
    """Return a line of a text, counted from 1; nothing where there is none."""
    lines = str(text or "").splitlines()
    return lines[number - 1].strip()[:160] if 0 < number <= len(lines) else ""


def lines_of(action: Any) -> List[Dict[str, Any]]:
    """Return samples by source line, the most first, with the line's text where the report has the file."""
    counts: Dict[Any, Dict[str, float]] = {}
    for name in action.metric_names():
        if not name.startswith(SAMPLES) or name.endswith("_not_issued"):
            continue
        metric = action.metric_by_name(name)
        places = metric.correlation_ids()
        for i in range(metric.num_instances()):
            where = action.source_info(places.as_uint64(i))
            if where is not None:
                own = counts.setdefault((where.file_name(), where.line()), {})
                reason = name[len(SAMPLES) :]
                own[reason] = own.get(reason, 0) + metric.as_uint64(i)
    texts: Any = dict(action.source_files()) if counts else {}
    found: List[Dict[str, Any]] = []
    for (file, number), reasons in counts.items():
        line = line_in(texts.get(file), number)
        stalls = {k: v for k, v in reasons.items() if v and k not in ("selected", "not_selected")}
        found.append({"file": file, "line": number, "samples": sum(reasons.values()), "text": line, "stalls": stalls})
    return sorted(found, key=lambda x: -x["samples"])[:MOST_LINES]


def rules_of(action: Any) -> List[Dict[str, Any]]:
    """Return what ncu's rules say."""
    found: List[Dict[str, Any]] = []
    for rule in action.rule_results_as_dicts():
        message: Dict[str, Any] = rule.get("rule_message") or {}
        gain: Dict[str, Any] = rule.get("speedup_estimation") or {}
        text = "%s: %s" % (message.get("title") or "", message.get("message") or "")
        found.append(
            {
                "name": str(rule.get("rule_identifier") or "")[:80],
                "section": str(rule.get("section_identifier") or "")[:80],
                "kind": KINDS.get(int(message.get("type") or 0), "INF"),
                "text": text.strip(": ")[:600],
                "scope": SCOPES.get(int(gain.get("type") or 0)),
                "speedup_percent": gain.get("speedup"),
            }
        )
    return found


def read_report(path: str) -> Dict[str, Any]:
    """Read a report with the module that was imported."""
    report: Any = importlib.import_module("ncu_report").load_report(path)
    kernels: List[Dict[str, Any]] = []
    for r in range(report.num_ranges()):
        actions = report.range_by_idx(r)
        for a in range(min(actions.num_actions(), MOST_KERNELS)):
            action = actions.action_by_idx(a)
            metrics = metrics_of(action)
            sizes: Dict[str, str] = {}
            for what, key in (("grid", "Grid Size"), ("block", "Block Size")):
                parts = [metrics.get("launch__%s_dim_%s" % (what, axis)) for axis in "xyz"]
                known = [str(int(p)) for p in parts if p is not None]
                sizes[key] = ",".join(known) if len(known) == 3 else str(metrics.get("launch__%s_size" % what, ""))
            kernel: Dict[str, Any] = {"Kernel Name": name_of(action), "metrics": metrics}
            kernel.update(sizes)
            for key, read in (("rules", rules_of), ("lines", lines_of)):
                try:
                    kernel[key] = read(action)
                except Exception as error:
                    kernel["problem"] = "%s: %s" % (key, error)
            kernels.append(kernel)
    return {"kernels": kernels}


def read_apart(report: str, folders: List[str], into: str) -> bool:
    """Read the report in a child; say whether that went well."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            sys.path[:0] = folders
            with open(into + ".part", "w", encoding="utf-8") as out:
                json.dump(read_report(report), out)
            os.rename(into + ".part", into)
            code = 0
        except BaseException as error:
            print("ncu's own reader: %r" % error, file=sys.stderr)
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def reader_folders(ncu: str) -> List[str]:
    """Return where ncu's module may lie."""
    home = os.path.dirname(os.path.realpath(ncu))
    found = [os.path.join(home, "extras", "python"), os.path.join(home, "..", "..", "extras", "python")]
    found += sorted(glob.glob("/opt/nvidia/nsight-compute/*/extras/python"), reverse=True)
    return [f for f in found if os.path.isdir(f)]


def collect(patterns: List[str], folder: str) -> None:
    """Copy what a profiler wrote, under names that are known ahead: out-0.csv, out-1.db ..."""
    files = sorted({f for p in patterns for f in glob.glob(p, recursive=True) if os.path.isfile(f)})
    for n, file in enumerate(files[:MOST_FILES]):
        shutil.copyfile(file, os.path.join(folder, "out-%d%s" % (n, os.path.splitext(file)[1])))


def main(arguments: List[str]) -> None:
    """Run the profiler, then read.

    Args:
        arguments: One JSON document: `argv`; `folder` for results; for ncu `report` and `ncu`, its path; for others
            `collect`, patterns of files to keep, and `more`, commands that are run after the first, whose exit
            code alone counts. `second`, a command that runs unseen after a good first, where `limit_s` for both
            leaves it as long as that took.
    """
    plan = json.loads(arguments[0])
    folder = plan["folder"]
    os.makedirs(folder, exist_ok=True)
    began = time.monotonic()
    about: Dict[str, Any] = {"code": run(plan["argv"]), "seconds": time.monotonic() - began}
    for argv in plan.get("more", []):
        run(argv)
    left_s = plan.get("limit_s", 0.0) - about["seconds"]
    if plan.get("second") and about["code"] == 0 and left_s > about["seconds"]:
        about["second"] = run(plan["second"], os.devnull, left_s)
    report = plan.get("report")
    if report and os.path.exists(report):
        read = read_apart(report, plan.get("readers", []) + reader_folders(plan["ncu"]), folder + "/report.json")
        if not read:
            base = [plan["ncu"], "--import", report, "--csv", "--page"]
            run([*base, "raw", "--print-units", "base"], folder + "/raw.csv")
            run([*base, "details"], folder + "/details.csv")
            run([*base, "source", "--print-source", "cuda,sass"], folder + "/source.csv")
        about["reader"] = "ncu_report" if read else "csv"
    collect(plan.get("collect", []), folder)
    about["all_seconds"] = time.monotonic() - began
    with open(folder + "/about.json", "w", encoding="utf-8") as out:
        json.dump(about, out)
    sys.exit(about["code"] if 0 <= about["code"] < 256 else 1)
