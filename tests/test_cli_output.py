"""Output of commands for people: no wider than the terminal, 80 columns where there is none."""

import io
import json
import shlex
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gpu_mcp_server.cli import history, output, status
from gpu_mcp_server.cli.clients import CLIENTS, remote_snippets, snippets
from gpu_mcp_server.cli.doctor import Check
from gpu_mcp_server.cli.jobs import jobs_table
from gpu_mcp_server.models.history import HistoryPoint
from gpu_mcp_server.services.commands.job_listing import JobListing
from gpu_mcp_server.time_format import format_time_range
from tests.commands import Commands, Done
from tests.laboratory import HONEST, PROBLEM, Folder

Run = Callable[..., Done]
LONG = "the reason has many words and goes on for longer than any terminal is wide " * 3


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("COLUMNS", raising=False)


def widest(text: str) -> int:
    return max(map(len, text.splitlines()))


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_lines_end_between_words_and_keep_every_word(width: int):
    text = f"short\n  {LONG}\n\nlast"
    wrapped = output.wrap_lines(text, width)

    assert widest(wrapped) <= width
    assert wrapped.split() == text.split()
    assert wrapped.startswith("short\n  the") and wrapped.endswith("\n\nlast")
    assert all(line.startswith("    ") for line in wrapped.splitlines()[2:-2])


def test_lines_that_fit_and_commands_in_backticks_stay_whole():
    fits = "a  b".ljust(79) + "|"
    command = "`gpu-mcp-server hosts check box --accept-key SHA256:abc`"
    wrapped = output.wrap_lines(f"{fits}\n{'word ' * 12}{command}, then again", 80)

    assert wrapped.splitlines()[0] == fits
    assert [line for line in wrapped.splitlines() if command in line] == [f"  {command}, then again"]


def test_the_width_is_that_of_the_terminal_and_columns_overrides_it(monkeypatch: pytest.MonkeyPatch):
    assert output.terminal_width() == 80
    monkeypatch.setenv("COLUMNS", "132")
    assert output.terminal_width() == 132


def test_a_table_cuts_the_named_columns_alone_and_shows_where():
    rows = [["a-0123456789ab", LONG, LONG, "end"]]
    shown = output.table(["ID", "FIRST", "SECOND", "LAST"], rows, shorten=(1, 2))
    line = shown.splitlines()[1]

    assert widest(shown) == 80
    assert line.startswith("a-0123456789ab  the reason") and line.endswith("end") and line.count("…") == 2
    assert rows[0][1] == LONG


def test_a_job_s_row_fits_with_the_longest_of_all_others():
    job = JobListing("j-1a216f74d15-af267675", "box", "run", LONG, "ada", "finished", "timeout", "x", 86_000, 7_000)

    assert widest(jobs_table([job])) <= 80


def test_history_shows_time_user_and_age_and_its_notes_below():
    then = (datetime.now(UTC) - timedelta(hours=2, minutes=5)).isoformat()
    points = [
        HistoryPoint(number=1, attempt_id="a-1j156rb2062msg", created_at=then, outcome="correct", user="ada",
                     median_us=38_723.4, shape="rows=1024,cols=1023", speedup=1.2345, best=1.2345,
                     best_trust="confirmed", note=LONG),
        HistoryPoint(number=2, attempt_id="a-2", created_at=then, outcome="incorrect"),
    ]  # fmt: skip
    heading, first, note, second, of = history.history_table(points)

    assert heading.split() == ["#", "ATTEMPT", "OUTCOME", "TIME", "SPEED-UP", "BEST", "USER", "AGE"]
    assert first.split() == [
        "1",
        "a-1j156rb2062msg",
        "correct",
        "38.7",
        "ms",
        "1.23",
        "1.23",
        "ada",
        "2",
        "h",
        "5",
        "min",
    ]
    assert note.startswith("    the reason") and note.endswith("…")
    assert second.split() == ["2", "a-2", "incorrect", "-", "-", "-", "-", "2", "h", "5", "min"]
    assert of == "TIME: of one call at rows=1024,cols=1023; SPEED-UP: over all shapes"
    assert widest("\n".join([heading, first, note, second, of])) <= 80
    doubted = history.history_table([points[0].model_copy(update={"best_trust": "provisional"})])
    assert "1.23?" in doubted[1].split() and doubted[-1] == "BEST with ?: not confirmed"


@pytest.mark.parametrize(
    ("ranks", "interval"),
    [
        ({"speedup": 1.5, "speedup_low": 1.4, "speedup_high": 1.6}, "1.4-1.6"),
        ({"by_time": True, "median_us": 10.0, "time_range_us": (9.5, 10.5)}, format_time_range(9.5e-6, 10.5e-6)),
    ],
    ids=["speed-up", "time"],
)
def test_history_has_interval_trust_and_source_of_what_ranks(ranks: dict[str, Any], interval: str):
    point = HistoryPoint(
        number=1, attempt_id="a-1", created_at=datetime.now(UTC).isoformat(), outcome="correct", note="tiled",
        trust="unconfirmable: a busy host", source_artifact_id="b-1", **ranks,
    )  # fmt: skip
    assert history.history_table([point])[2].strip() == f"{interval} unconfirmable; source b-1; tiled"


def test_a_host_of_many_compilers_and_busy_gpus_fits():
    gpu = {
        "index": 0, "name": "NVIDIA H100 80GB HBM3", "arch": "sm_90", "utilization_percent": 100,
        "memory_total_bytes": 80 << 30, "memory_used_bytes": 79 << 30, "sm_clock_mhz": 1980, "sm_clock_max_mhz": 1980,
        "power_w": 700.0, "power_limit_w": 700.0, "temperature_c": 60, "throttle": ["power cap"], "nvlink": ["a"],
        "locked_by": "job j-1 of ada (exclusive)",
    }  # fmt: skip
    host = {
        "host": "box", "reachable": True, "cpu": "AMD EPYC 9654 96-Core Processor", "cores": 96, "level": "namespaces",
        "toolchains": {f"compiler{n}": "1.2.3" for n in range(20)}, "gpus": [gpu], "problem": LONG,
    }  # fmt: skip
    told = io.StringIO()
    console = Console(file=told, width=80, highlight=False)
    console.print(status.render_status({"hosts": [host]}))

    assert widest(told.getvalue()) <= 80
    assert "GPU 0 NVIDIA H100 80GB HBM3 sm_90 NVLink to 1: job j-1 of ada" in told.getvalue()
    assert "load ████ 100%  memory ████ 79.0/80 GiB  1980/1980 MHz  700/700 W  60 C" in told.getvalue()
    assert "throttled: power cap" in told.getvalue()
    continued = [line for line in told.getvalue().splitlines() if line.strip().startswith("compiler")]
    assert len(continued) > 3 and all(line.startswith("    c") for line in continued[1:])


@pytest.mark.parametrize(
    "command", [["uvx", "gpu-mcp-server"], ["/home/ada/projects/gpu lab/.venv/bin/gpu-mcp-server"]]
)
def test_what_registers_the_server_fits_and_is_one_command_for_a_shell(command: list[str]):
    shown = snippets(command)

    assert max(map(widest, shown.values())) <= 80
    for client, name in zip(CLIENTS, ("claude", "codex", "gemini"), strict=True):
        assert shlex.split(shown[name].partition("\n\n")[0].replace("\\\n", "")) == client.registration(command)
    code, option, entry = shlex.split(shown["vscode"].replace("\\\n", ""))
    assert (code, option) == ("code", "--add-mcp")
    assert [json.loads(entry)["command"], *json.loads(entry).get("args", [])] == command
    assert max(map(widest, remote_snippets("https://gpu.example.org/mcp").values())) <= 80


def test_a_check_s_line_goes_on_indented():
    told = output.wrap_lines(Check("host box compilers", "warn", LONG.strip(), "install `apt install gcc g++`").line())

    assert widest(told) <= 80 and "\n  " in told and "`apt install gcc g++`" in told


@pytest.fixture(scope="module")
def run(commands: Commands) -> Iterator[Run]:
    with Folder() as folder:
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config"),
            "GPU_MCP_DATA_DIR": str(folder / "data"), "GPU_MCP_INDEX_DOCUMENTATION": "false",
        }  # fmt: skip

        def call(*arguments: str) -> Done:
            return commands.run(*arguments, env=environment, cwd=folder)

        yield call


@pytest.mark.parametrize(
    "command",
    [
        ("status",), ("doctor",), ("client-config",), ("jobs",), ("docs", "sources"), ("docs", "list"),
        ("hosts", "check"), ("config", "show", "--origin"), ("store", "info"), ("run", "--push", ".", "--", "true"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_command_s_ordinary_output_is_80_columns_wide_at_most(run: Run, tmp_path: Path, command: tuple[str, ...]):
    done = run(*command)
    wide = [line for line in (done.stdout + done.stderr).splitlines() if len(line) > 80 and " " in line.strip()]

    assert done.stdout or done.stderr
    assert wide == []


def test_a_problem_s_history_is_80_columns_wide_at_most(run: Run):
    problem = json.loads(run("call", "register_problem", "--args", json.dumps(PROBLEM), "--json").stdout)["problem_id"]
    for note in (LONG, "short"):
        given = {"problem_id": problem, "source": HONEST, "tier": "correctness", "note": note}
        run("call", "evaluate_kernel", "--args", json.dumps(given))
    for arguments in ((problem,), (), (problem, "--view", "recent")):
        told = run("history", *arguments).stdout
        assert told and [line for line in told.splitlines() if len(line) > 80] == []
