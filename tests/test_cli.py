"""The command line, in real processes with settings and data of their own."""

import asyncio
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mcp import Client
from mcp.types import CallToolResult
from typer.testing import CliRunner

from gpu_mcp_server import __version__
from gpu_mcp_server.cli import serving_options
from gpu_mcp_server.cli.app import AFTER_INTERRUPT, PANELS, app
from gpu_mcp_server.cli.clients import CLIENTS, snippets
from gpu_mcp_server.cli.doctor import host_checks, local_checks
from gpu_mcp_server.cli.host_arguments import parsed_target
from gpu_mcp_server.cli.in_process_client import ProgressLine
from gpu_mcp_server.cli.init import ssh_host_names
from gpu_mcp_server.cli.recipe import ProgressView
from gpu_mcp_server.dev.generated_pages import REFERENCE, replace_marked_part, write_pages
from gpu_mcp_server.errors import BadRequest, ConfigError
from gpu_mcp_server.settings.config_edit import with_host, without_host
from gpu_mcp_server.settings.server_settings import Settings
from tests.commands import Commands, Done
from tests.laboratory import HONEST, PROBLEM

ROOT = Path(__file__).parents[1]
Run = Callable[..., Done]


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A folder that the uid of jobs can reach too, which pytest's own temporary folders are not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        yield Path(folder) / "data"


@pytest.fixture
def environment(tmp_path: Path, data_dir: Path) -> dict[str, str]:
    programs = tmp_path / "bin"
    programs.mkdir()
    return {
        "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "GPU_MCP_DATA_DIR": str(data_dir),
        "GPU_MCP_INDEX_DOCUMENTATION": "false",
    }


@pytest.fixture
def run(commands: Commands, environment: dict[str, str], tmp_path: Path) -> Run:
    def call(*arguments: str, **more: str) -> Done:
        return commands.run(*arguments, env={**environment, **more}, cwd=tmp_path)

    return call


@pytest.fixture(scope="module")
def level(commands: Commands) -> str:
    """The sandbox level of jobs here."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": folder, "GPU_MCP_DATA_DIR": f"{folder}/data"}
        status = json.loads(commands.run("status", "--json", env=env, cwd=Path(folder)).stdout)
    return next((str(host.get("level")) for host in status.get("hosts", [])), "none")


@pytest.fixture
def sandboxed(run: Run, level: str) -> Run:
    """Runs commands where jobs can run; skips where they cannot."""
    if level not in ("full", "namespaces"):
        pytest.skip(f"jobs cannot run here: sandbox level {level}")
    return run


def test_version_is_printed_without_importing_anything_of_weight():
    command = [sys.executable, "-m", "gpu_mcp_server", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    code = (
        "import sys; sys.argv = ['x', '--version']; from gpu_mcp_server.cli import main; main(); "
        "print(sorted({'typer', 'mcp', 'pydantic', 'asyncio'} & set(sys.modules)))"
    )
    light = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == f"gpu-mcp-server {__version__}\n"
    assert light.stdout.splitlines()[1] == "[]"


def test_every_command_offers_json(run: Run):
    assert app.registered_commands
    groups = [app, *(group.typer_instance for group in app.registered_groups)]
    for group in groups:
        assert group is not None
        for command in group.registered_commands:
            assert command.callback is not None
            assert "as_json" in command.callback.__code__.co_varnames, command.callback.__name__


@pytest.mark.timeout(600)
def test_a_program_without_a_result_ends_the_command_with_1(sandboxed: Run):
    arguments = {"command": ["/usr/bin/python3", "-I", "-c", "print(1)"], "target": "aten::mm"}
    done = sandboxed("call", "capture_problem", "--args", json.dumps(arguments))

    assert done.returncode == 1 and done.stdout.startswith("no problem was made of aten::mm: ")


def test_call_prints_the_text_of_a_tool_or_its_structure(run: Run):
    text = run("call", "list_problems")
    structure = run("call", "list_problems", "--args", "{}", "--json")

    assert (text.returncode, text.stdout) == (0, "no problems yet; register_problem makes one\n")
    assert json.loads(structure.stdout) == {"total": 0, "problems": []}


def test_call_of_a_tool_that_reports_an_error_exits_with_one(run: Run):
    text = run("call", "list_problems", "--args", '{"id": 1}')
    structure = run("call", "read_artifact", "--args", '{"artifact_id": "b-0"}', "--json")

    assert (text.returncode, text.stdout) == (1, "")
    assert "it takes: problem_id" in text.stderr
    assert structure.returncode == 1
    assert "There is no artifact" in json.loads(structure.stdout)["error"]


def test_audit_says_that_nothing_is_old_where_nothing_is(run: Run):
    assert json.loads(run("audit", "--json").stdout) == {"boards": []}
    assert json.loads(run("audit", "--redo", "--json").stdout) == {"audits": [], "failed": []}
    assert "by a version that keeps candidates from forging one" in run("audit").stdout
    assert "There is no problem" in str(run("audit", "p-0").stderr)


@pytest.mark.parametrize("arguments", ["{", "[]", "@missing.json"])
def test_call_refuses_arguments_that_are_no_object(run: Run, arguments: str):
    done = run("call", "gpu_status", "--args", arguments)

    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_call_reads_its_arguments_from_a_file(run: Run, tmp_path: Path):
    (tmp_path / "arguments.json").write_text('{"files": {"k.c": "int a;\\n"}}')
    done = run("call", "write_files", "--args", "@arguments.json", "--json")

    assert json.loads(done.stdout)["written"] == ["k.c"]


def test_push_and_pull_carry_a_folder_there_and_back(run: Run, tmp_path: Path):
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "run.sh").write_text("#!/bin/sh\n")
    (source / "sub" / "run.sh").chmod(0o755)
    pushed = json.loads(run("push", str(source), "--json").stdout)
    pulled = run("pull", pushed["workspace_id"], "back")
    again = run("pull", pushed["workspace_id"], "back")
    forced = run("pull", pushed["workspace_id"], "back", "--force")

    assert pulled.returncode == 0, pulled.stderr
    assert (tmp_path / "back" / "sub" / "run.sh").read_text() == "#!/bin/sh\n"
    assert os.access(tmp_path / "back" / "sub" / "run.sh", os.X_OK)
    assert (again.returncode, forced.returncode) == (1, 0)
    assert "--force" in again.stderr


def test_run_prints_the_output_and_ends_with_the_exit_code(sandboxed: Run):
    done = sandboxed("run", "--", "sh", "-c", "echo out; echo err >&2; exit 3")

    assert (done.returncode, done.stdout) == (3, "out\n")
    assert done.stderr.startswith("err\nfailed: job ")


def test_run_ends_as_shells_do_after_a_timeout_and_without_a_program(sandboxed: Run):
    late = sandboxed("run", "--timeout", "0.2", "--", "sleep", "60")
    absent = sandboxed("run", "--", "no-such-program")

    assert (late.returncode, absent.returncode) == (124, 127)
    assert "there is no program 'no-such-program' in the sandbox" in absent.stderr


def test_a_table_waits_for_the_candidates_whose_jobs_would_end_with_the_command(sandboxed: Run):
    problem = json.dumps({**PROBLEM, "shapes": [{"n": 1000}]})
    problem_id = json.loads(sandboxed("call", "register_problem", "--args", problem, "--json").stdout)
    slow = "#include <unistd.h>" + HONEST.replace("for (", "usleep(600000); for (")  # longer than the wait, in one call
    sources = [slow, HONEST, HONEST.replace("for (", "for (volatile int k = 0; k < 2; k++) for (")]
    given = [{"name": f"c{k}", "source": source, "language": "c"} for k, source in enumerate(sources)]
    arguments = {"problem_id": problem_id["problem_id"], "candidates": given, "tier": "smoke", "wait_s": 0.5}
    done = sandboxed("call", "evaluate_kernels", "--args", json.dumps(arguments), "--json")

    assert "candidates have no verdict yet: waiting for them" in done.stderr, done.stderr[-2000:]
    assert {row["name"]: row["verdict"] for row in json.loads(done.stdout)["rows"]} == dict.fromkeys(
        ("c0", "c1", "c2"), "correct"
    )


@pytest.mark.parametrize("token", ["", "two words", "caf\u00e9"])
def test_login_refuses_what_cannot_be_a_token_before_it_asks_the_server(token: str):
    done = CliRunner().invoke(app, ["login", "http://127.0.0.1:9"], input=token)

    assert done.exit_code != 0 and "That is no token" in str(done.exception), done.output


def test_options_before_a_command_choose_the_tools_that_it_can_call(run: Run):
    refused = run("--read-only", "call", "write_files", "--args", '{"files": {"a": "b"}}')
    narrow = run("--toolsets", "core", "call", "list_problems")
    less = run("--exclude-tools", "list_attempts", "history")

    assert [done.returncode for done in (refused, narrow, less)] == [1, 1, 1]
    assert "There is no tool 'write_files' here" in refused.stderr
    assert "There is no tool 'list_attempts' here" in less.stderr
    slip = run("call", "list_problem", "--args", "{'limit': 1}")
    assert slip.returncode == 2 and 'write --args \'{"KEY": "VALUE"}\'' in " ".join(slip.stderr.split())
    slip = run("call", "list_problem")
    assert "no tool 'list_problem' here. Did you mean `gpu-mcp-server call list_problems`?" in slip.stderr, slip.stderr
    assert (
        "belongs to the toolset 'evaluate', which is off: the user can start the server with --toolsets default,"
        in narrow.stderr
    )
    assert "which is off" not in refused.stderr + less.stderr


def test_options_before_a_command_that_calls_no_tool_are_refused(run: Run):
    done = run("--read-only", "--toolsets", "core", "store", "path")

    assert (done.returncode, done.stdout) == (2, "")
    assert "--toolsets and --read-only say which tools are offered; `store` offers and calls none." in done.stderr


async def test_progress_is_one_changing_line_on_a_terminal(capsys: pytest.CaptureFixture[str]):
    line = ProgressLine(terminal=True)
    for message in ("compiling", "shape 1 of 2: round 1", "shape 1 of 2: round 2"):
        await line(0.0, None, message)
    line.end()
    said = capsys.readouterr().err

    assert "\n" not in said
    assert said == "\r\x1b[Kcompiling\r\x1b[Kshape 1 of 2: round 1\r\x1b[Kshape 1 of 2: round 2\r\x1b[K"


async def test_progress_elsewhere_is_a_line_for_each_new_thing_and_none_for_each_round(
    capsys: pytest.CaptureFixture[str],
):
    line = ProgressLine(terminal=False)
    for message in ("compiling", "shape 1 of 2: round 1", "shape 1 of 2: round 2", "shape 2 of 2: round 1"):
        await line(0.0, None, message)
    line.end()

    assert capsys.readouterr().err == "compiling\nshape 1 of 2: round 1\nshape 2 of 2: round 1\n"


async def test_a_wait_in_the_queue_is_a_new_line_where_place_or_holder_change(capsys: pytest.CaptureFixture[str]):
    line = ProgressLine(terminal=False)
    for lead in ("", "a-1: ", "a-2: ") * 3:
        await line(0.0, None, f"{lead}queue: position 2, about {len(lead)} s: waiting because g is held by j-1 for 4 s")
    for wait_s, holder in ((3, "j-1"), (2, "j-1"), (1, "j-2")):
        await line(0.0, None, f"queue: position 1, about {wait_s} s: waiting because g is held by {holder} for 4 s")
    line.end()

    told = [text.split("queue: position ") for text in capsys.readouterr().err.splitlines()]
    assert [lead + place[0] + place.partition(" by ")[2][:3] for lead, place in told] == [
        "2j-1", "a-1: 2j-1", "a-2: 2j-1", "1j-1", "1j-2",
    ]  # fmt: skip


async def test_of_a_run_only_what_a_step_came_to_is_a_line_that_stays(capsys: pytest.CaptureFixture[str]):
    view = ProgressView()
    view._line = ProgressLine(terminal=True)  # pyright: ignore[reportPrivateUsage]
    said = ("tune-001: begun", "tune-001-02: waits", "tune-001-02: queue: position 1", "tune-001: 1 of 2 correct (2 s)")
    for message in said:
        await view(message)

    assert capsys.readouterr().err.endswith("\x1b[Ktune-001: 1 of 2 correct (2 s)\n")
    for message in said[:3]:
        await view(message)
    view.end()
    assert "\n" not in capsys.readouterr().err


def test_doctor_starts_the_judges_python_inside_the_sandbox(sandboxed: Run):
    checks = {check["name"]: check for check in json.loads(sandboxed("doctor", "--json").stdout)["checks"]}
    inside = checks["host local judge in the sandbox"]

    assert inside["state"] == "ok"
    assert "starts inside the sandbox; it imports NumPy" in inside["found"]


def test_doctor_says_what_the_judges_python_cannot_import_inside_the_sandbox(sandboxed: Run, data_dir: Path):
    numpy = importlib.util.find_spec("numpy")
    assert numpy is not None and numpy.origin is not None
    if numpy.origin.startswith("/usr/"):
        pytest.skip("NumPy lies in /usr here, which every sandbox shows")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(data_dir.parent / "judge")], check=True)
    (packages,) = (data_dir.parent / "judge").glob("lib/python*/site-packages")
    elsewhere = data_dir.parent / "elsewhere"  # a folder that no sandbox shows, unlike one with NVIDIA's libraries
    for source in Path(numpy.origin).parents[1].glob("numpy*"):
        shutil.copytree(source, elsewhere / source.name)
    (packages / "elsewhere.pth").write_text(str(elsewhere))
    hosts = json.dumps({"local": {"kind": "local", "judge_python": str(data_dir.parent / "judge/bin/python")}})
    done = sandboxed("doctor", "--json", GPU_MCP_HOSTS=hosts)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}

    assert done.returncode == 1
    assert checks["host local judge"]["state"] == "ok"
    assert checks["host local judge in the sandbox"]["state"] == "fail"
    assert "it imports no NumPy" in checks["host local judge in the sandbox"]["found"]
    assert "roots" in checks["host local judge in the sandbox"]["todo"]


def test_run_prints_all_of_a_long_output(sandboxed: Run):
    done = sandboxed("run", "--", "seq", "1", "20000")

    assert done.stdout.splitlines() == [str(i) for i in range(1, 20001)]


def interrupt_after(words: str, command: list[str], environment: dict[str, str], folder: Path) -> tuple[int, str]:
    """Press Ctrl-C once a command has written these words to stderr; return its exit code and what it wrote then."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gpu_mcp_server", *command],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        cwd=folder,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            break
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    return process.returncode, said


def test_interrupting_a_call_cancels_its_job(sandboxed: Run, environment: dict[str, str], tmp_path: Path):
    arguments = json.dumps({"command": ["sh", "-c", "echo started; sleep 600"]})
    command = ["call", "run_command", "--args", arguments]
    code, said = interrupt_after("started", command, environment, tmp_path)
    (job,) = json.loads(sandboxed("jobs", "--json").stdout)["jobs"]
    seen = json.loads(sandboxed("call", "job_status", "--args", json.dumps({"job_id": job["job_id"]}), "--json").stdout)

    assert code == 130
    assert (seen["state"], seen["status"]) == ("finished", "cancelled")
    assert "interrupted: The call's job was ended, too; what had its verdict is kept:" in said


def test_ctrl_c_ends_a_run_s_agent_and_says_the_command_that_goes_on(
    sandboxed: Run, environment: dict[str, str], tmp_path: Path
):
    problem = (
        'name = "same"\nreference = "def reference(x):\\n    return x + 1\\n"\nrtol = 1e-5\natol = 1e-6\n'
        'inputs = [{ name = "x", dtype = "float32", shape = ["n"] }]\n'
        'outputs = [{ name = "y", dtype = "float32", shape = ["n"] }]\nshapes = [{ n = 1000 }]\n'
    )
    (tmp_path / "problem.toml").write_text(problem)
    plan = 'name = "slow"\nproblem = "problem.toml"\nlanguage = "c"\n[agent]\ncommand = ["/bin/sleep", "600"]\n'
    (tmp_path / "run.toml").write_text(plan)
    code, said = interrupt_after("specification-001: begun", ["recipe", "run", "run.toml"], environment, tmp_path)
    (run_state,) = json.loads(sandboxed("recipe", "list", "--json").stdout)
    jobs = json.loads(sandboxed("jobs", "--json").stdout)["jobs"]

    assert code == 130 and run_state["state"] == "unfinished"
    assert (
        f"interrupted: Finished steps are kept: `gpu-mcp-server recipe resume {run_state['run_id']}` goes on."
        in " ".join(said.split())
    )
    assert {job["state"] for job in jobs} == {"finished"}, jobs


def test_what_ctrl_c_leaves_is_said_of_known_commands():
    members = [member for listed in PANELS.values() for member in listed]
    names = {member[0] if isinstance(member, tuple) else str(getattr(member, "__name__", "")) for member in members}
    assert set(AFTER_INTERRUPT) <= names | {"run"}


def test_doctor_says_one_line_a_check_and_fails_with_wrong_settings(run: Run):
    done = run("doctor", "--json", GPU_MCP_HOSTS='{"box": {"kind": "teleport"}}')
    (check,) = json.loads(done.stdout)["checks"]

    assert done.returncode == 1
    assert (check["name"], check["state"]) == ("settings", "fail")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs jobs as another uid")
def test_doctor_warns_of_a_data_folder_that_jobs_cannot_reach(tmp_path: Path):
    tmp_path.chmod(0o700)
    checks = {check.name: check for check in local_checks(Settings(data_dir=tmp_path / "data"))}

    assert checks["data"].state == "warn"
    assert str(tmp_path) in checks["data"].todo or "chmod o+x" in checks["data"].todo


@pytest.mark.parametrize(
    ("times", "state"),
    [
        ("18 of the last 20 could be confirmed", "ok"),
        ("9 of the last 20 could be confirmed", "warn"),
        ("unknown: none was taken here yet", "ok"),
        ("never: jobs can stop each other on this host, and the judge's clock with them", "warn"),
    ],
)
def test_doctor_says_how_well_the_times_of_a_host_can_be_confirmed(times: str, state: str):
    (check,) = [c for c in host_checks([{"host": "a", "reachable": True, "times": times}]) if c.name == "host a times"]
    assert (check.state, check.found, bool(check.todo)) == (state, times, state == "warn")


def test_doctor_warns_of_a_judge_python_that_another_stands_in_for():
    told = {"host": "a", "reachable": True, "devices": ["cpu"]}
    fit, other = [
        next(c for c in host_checks([{**told, "judge": judge}]) if c.name == "host a judge")
        for judge in ("Python 3.11 at /b (judge_python of this host)", "Python 3.11 at /b (instead of judge_python /a)")
    ]
    assert [fit.state, other.state] == ["ok", "warn"]
    assert other.todo.startswith("gpu-mcp-server hosts set a --with numpy; ")


def test_doctor_says_what_to_do_about_a_host():
    silent = {"host": "box", "kind": "ssh", "reachable": False, "problem": "The key of box is new; add it."}
    weak = {"host": "local", "kind": "local", "reachable": True, "level": "landlock", "weaker_because": "no bwrap"}
    weak |= {"fix_hint": "apt-get install bubblewrap."}

    assert [check.line() for check in host_checks([silent])] == [
        "fail host box: does not answer -> The key of box is new; add it."
    ]
    assert "fail host local sandbox: landlock: no bwrap -> apt-get install bubblewrap." in [
        check.line() for check in host_checks([weak])
    ]
    assert {check.name: check.state for check in host_checks([weak])} == {
        "host local": "ok",
        "host local sandbox": "fail",
        "host local compilers": "fail",
        "host local judge": "warn",
        "host local gpu": "ok",
    }


def test_doctor_says_which_compiler_the_gpus_want():
    host = {
        "host": "local",
        "reachable": True,
        "level": "full",
        "toolchains": {"gcc": "12"},
        "judge": "x",
        "devices": ["cpu"],
    }
    of = {
        vendor: {c.name: c for c in host_checks([{**host, "gpus": [{"name": "G", "vendor": vendor}]}])}[
            "host local compilers"
        ]
        for vendor in ("nvidia", "amd")
    }
    assert "no nvcc" in of["nvidia"].found and "[cuda]" in of["nvidia"].todo
    assert "no HIP compiler" in of["amd"].found and "hipcc" in of["amd"].todo
    (good,) = [
        c
        for c in host_checks([{**host, "toolchains": {"hipcc": "5.2"}, "gpus": [{"name": "G", "vendor": "amd"}]}])
        if "compilers" in c.name
    ]
    assert good.state == "ok"


def test_status_tells_again_and_again_one_line_of_json_each(environment: dict[str, str], tmp_path: Path):
    command = [sys.executable, "-m", "gpu_mcp_server", "status", "--watch", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path) as watching:
        assert watching.stdout is not None
        seen = [json.loads(watching.stdout.readline()) for _ in range(2)]
        watching.send_signal(signal.SIGINT)
        assert watching.wait(timeout=30) in (0, 130, -signal.SIGINT)
    assert [s["hosts"][0]["host"] for s in seen] == ["local", "local"] and "toolchains" in seen[1]["hosts"][0]


def test_config_shows_values_and_where_they_come_from(run: Run, tmp_path: Path):
    (tmp_path / "config" / "gpu-mcp-server").mkdir(parents=True)
    (tmp_path / "config" / "gpu-mcp-server" / "config.toml").write_text("allow_fetch = true\n")
    shown = json.loads(run("config", "show", "--origin", "--json", GPU_MCP_READ_ONLY="true").stdout)

    assert shown["allow_fetch"]["value"] is True
    assert shown["allow_fetch"]["origin"].endswith("config.toml")
    assert shown["read_only"] == {"value": True, "origin": "environment GPU_MCP_READ_ONLY"}
    assert run("config", "validate").returncode == 0
    assert run("config", "validate", GPU_MCP_TOOLSET="x").returncode == 2


def test_hosts_are_added_listed_and_removed(run: Run, tmp_path: Path):
    file = tmp_path / "config" / "gpu-mcp-server" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("# mine\nallow_fetch = true\n")
    added = run("hosts", "add", "box", "ada@gpu-box:2222", "--no-check", "--python", "/opt/python")
    again = run("hosts", "add", "box", "gpu-box", "--no-check")
    listed = json.loads(run("hosts", "list", "--json").stdout)["hosts"]
    removed = run("hosts", "remove", "box")

    assert (added.returncode, again.returncode, removed.returncode) == (0, 2, 0)
    assert listed["box"]["user"] == "ada"
    assert file.read_text() == "# mine\nallow_fetch = true\n"
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_host_that_the_settings_refuse_leaves_the_file_as_it_was(run: Run, tmp_path: Path):
    done = run("hosts", "add", "bad name", "gpu-box", "--no-check")
    file = tmp_path / "config" / "gpu-mcp-server" / "config.toml"

    assert done.returncode == 2
    assert not file.exists() or file.read_text() == ""


def test_init_writes_nothing_in_a_dry_run_and_registers_with_the_clients_found(run: Run, tmp_path: Path):
    claude = tmp_path / "bin" / "claude"
    claude.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/registered\n')
    claude.chmod(0o755)
    dry = json.loads(run("init", "--dry-run", "--no-probe", "--json").stdout)
    assert not (tmp_path / "registered").exists()
    wet = json.loads(run("init", "--yes", "--no-probe", "--json").stdout)

    assert dry["clients"][0]["client"] == "Claude Code"
    assert wet["clients"] == [{**dry["clients"][0], "registered": True}]
    assert (tmp_path / "registered").read_text().startswith("mcp add --scope user gpu -- ")


def test_install_prints_a_snippet_for_each_client(run: Run):
    shown = json.loads(run("client-config", "--json").stdout)

    assert list(shown) == ["claude", "codex", "gemini", "vscode", "cursor"]
    assert tomllib.loads(snippets(["/a b/gpu", "--read-only"])["codex"].partition("\n\n")[2])["mcp_servers"]["gpu"] == {
        "command": "/a b/gpu",
        "args": ["--read-only"],
        "required": True,
        "tool_timeout_sec": 300,
    }
    assert {c.program for c in CLIENTS} == {"claude", "codex", "gemini"}


def test_store_says_where_it_is_and_how_large(run: Run, data_dir: Path):
    run("call", "list_problems")
    size = json.loads(run("store", "size", "--json").stdout)

    assert run("store", "path").stdout == f"{data_dir}\n"
    assert size["bytes"] == sum(part["bytes"] for part in size["parts"].values()) > 0
    assert json.loads(run("store", "gc", "--json").stdout) == {"deleted_files": 0}


def test_a_backup_is_written_restored_elsewhere_and_pruned(run: Run, tmp_path: Path):
    run("call", "write_files", "--args", '{"files": {"a.txt": "a"}}')
    made = json.loads(run("store", "backup", "one.tar.gz", "--json").stdout)
    elsewhere = {"GPU_MCP_DATA_DIR": str(tmp_path / "elsewhere")}
    again = run("store", "restore", "one.tar.gz", **elsewhere)
    whole = run("store", "check", **elsewhere)
    told = run("store", "prune", "--older-than", "30d", **elsewhere)

    assert (tmp_path / "one.tar.gz").is_file()
    assert again.stdout.replace("\n  ", " ").startswith(
        f"{made['files']} files of {made['created_at']} are in {tmp_path}/elsewhere"
    )
    assert whole.stdout.replace("\n  ", " ").startswith(f"{tmp_path}/elsewhere/lab.db is whole: "), whole.stderr
    assert "There is nothing to delete." in told.stdout
    assert "--older-than 30d" in run("store", "prune").stderr
    assert "is no amount" in run("store", "prune", "--max-size", "many").stderr


def test_the_command_line_works_for_a_user_of_the_team_who_sees_what_is_theirs(run: Run):
    for name in ("ada", "bo"):
        run("token", "create", name)
    made = json.loads(
        run("call", "write_files", "--args", '{"files": {"a": "a"}}', "--json", GPU_MCP_USER="ada").stdout
    )
    asked = ("call", "list_files", "--args", json.dumps({"workspace_id": made["workspace_id"]}))

    assert [run(*asked, GPU_MCP_USER=name).returncode for name in ("ada", "bo")] == [0, 1]
    assert run(*asked).returncode == 0, "nobody in particular sees everything"
    assert "There is no user 'eve'" in run(*asked, GPU_MCP_USER="eve").stderr


def test_serve_over_http_refuses_to_be_open_to_others_before_it_starts(run: Run):
    none = run("serve", "--http", "0.0.0.0:0", "--auth", "none")
    no_token = run("serve", "--http", "--host", "0.0.0.0")
    wrong = run("serve", "--http", "example.org:80")

    assert (none.returncode, no_token.returncode, wrong.returncode) == (2, 2, 2)
    assert "without authentication" in none.stderr and "--auth none" in none.stderr
    assert "gpu-mcp-server token create" in no_token.stderr
    assert "no address" in wrong.stderr


def _serving(environment: dict[str, str], folder: Path) -> tuple[subprocess.Popen[str], str]:
    """Start a server over HTTP; return it and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gpu_mcp_server", "serve", "--http", "127.0.0.1:0"],
        stderr=subprocess.PIPE,
        env=environment,
        cwd=folder,
        text=True,
    )
    assert process.stderr is not None
    url = next(found[1] for line in process.stderr if (found := re.search(r"running on (http://[\d.:]+)", line)))
    return process, url


def test_a_token_made_on_the_command_line_opens_a_server_and_a_revoked_one_does_not(
    run: Run, environment: dict[str, str], tmp_path: Path
):
    made = json.loads(run("token", "create", "ada", "--scope", "read", "--expires", "1d", "--json").stdout)
    limits = run("user", "set", "ada", "--gpu-s-per-day", "3600", "--weight", "2").stdout
    process, url = _serving(environment, tmp_path)

    def ask(token: str) -> int:
        request = urllib.request.Request(f"{url}/metrics", headers={"Authorization": f"Bearer {token}"})
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    before = ask(made["token"])
    revoked = run("token", "revoke", made["token_id"])
    after = ask(made["token"])
    process.send_signal(signal.SIGTERM)
    process.communicate()

    assert (before, after, process.returncode) == (200, 401, -signal.SIGTERM)
    assert "is revoked" in revoked.stdout and made["token"] not in run("token", "list").stdout
    assert "gpu_s_per_day 3600" in limits and "weight 2" in limits
    assert "is damaged" in _served_on_a_damaged_store(run, tmp_path)


def test_login_tries_the_token_keeps_it_for_this_user_alone_and_registers_with_clients(
    run: Run, commands: Commands, environment: dict[str, str], tmp_path: Path
):
    token = json.loads(run("token", "create", "ada", "--json").stdout)["token"]
    bin_ = tmp_path / "clients"
    bin_.mkdir()
    (bin_ / "claude").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/said\n')
    (bin_ / "claude").chmod(0o755)
    process, url = _serving(environment, tmp_path)

    def login(secret: str) -> Done:
        path = {**environment, "PATH": f"{bin_}:/usr/bin:/bin"}
        return commands.run("login", f"{url}/mcp", env=path, cwd=tmp_path, stdin=secret)

    wrong, right = login("gpumcp_nothing\n"), login(f"{token}\n")
    shown = run("login", url, "--show").stdout.strip()
    pushed = run("store", "push", url)
    process.kill()
    process.communicate()
    (kept,) = tmp_path.rglob("logins.json")

    assert wrong.returncode == 2 and "does not take the token" in wrong.stderr
    assert right.returncode == 0 and "Claude Code: registered as gpu-team" in right.stdout
    assert pushed.stdout.startswith("0 problems, 0 attempts, 0 notes and 0 files are new there"), pushed.stderr
    assert shown == token and kept.stat().st_mode & 0o777 == 0o600
    said = (tmp_path / "said").read_text()
    assert re.search(rf"mcp add --scope user gpu-team -- .*connect {url}$", said, re.MULTILINE) and token not in said
    assert "not encrypted" in run("login", "http://gpu.example.org").stderr


def _served_on_a_damaged_store(run: Run, tmp_path: Path) -> str:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "lab.db").write_bytes(b"no database at all, but long enough to be one" * 100)
    done = run("serve", "--http", "127.0.0.1:0", GPU_MCP_DATA_DIR=str(tmp_path / "broken"))
    assert done.returncode == 2 and "store restore" in done.stderr
    return done.stderr


def test_the_generated_pages_are_up_to_date():
    assert write_pages(ROOT / "docs", check=True) == [], "run `python -m gpu_mcp_server.dev pages`"


def test_a_generated_part_replaces_only_what_is_between_its_markers():
    page = "# Tools\n\n<!-- generated: tools -->\n\none\n\n<!-- end: tools -->\nAfter.\n"

    assert replace_marked_part(page, "tools", "two\n") == page.replace("one", "two")


def test_a_stranger_s_readme_gets_no_tables(tmp_path: Path):
    readme = tmp_path / "README.md"
    readme.write_text("# Mine\n")
    (tmp_path / "docs" / "reference").mkdir(parents=True)
    for name in REFERENCE:
        (tmp_path / "docs" / "reference" / f"{name}.md").write_text("# Mine too\n")

    with pytest.raises(BadRequest, match="no markers"):
        write_pages(tmp_path / "docs", check=False)
    assert readme.read_text() == "# Mine\n"


def test_a_server_over_stdio_starts_without_the_commands():
    assert serving_options([]) == {"toolsets": None, "read_only": None, "exclude_tools": None}
    given = serving_options(["--toolsets", "default,build", "--read-only", "--exclude-tools=run_command"])
    assert given == {"toolsets": "default,build", "read_only": True, "exclude_tools": "run_command"}
    for words in (["status"], ["--toolsets"], ["--help"], ["--read-only", "call"], ["--read-onl"]):
        assert serving_options(words) is None


def test_help_shows_every_command_in_a_group():
    said = CliRunner().invoke(app, ["--help"]).stdout
    groups = said.partition("\nStart:\n")[2]
    names = [command.name or command.callback.__name__.replace("_", "-") for command in app.registered_commands]  # pyright: ignore

    assert all(f"\n{panel}:\n" in said for panel in PANELS)
    for name in [*names, *(group.name for group in app.registered_groups)]:
        assert re.search(rf"^  {name} ", groups, re.MULTILINE), name
    assert "install " not in groups and "knowledge" not in groups


@pytest.mark.parametrize(
    ("target", "values"),
    [
        ("gpu-box", {"host": "gpu-box"}),
        ("ada@gpu-box", {"host": "gpu-box", "user": "ada"}),
        ("ada@[::1]:22", {"host": "::1", "user": "ada", "port": 22}),
    ],
)
def test_a_target_is_user_host_and_port(target: str, values: dict[str, object]):
    assert parsed_target(target) == {"kind": "ssh", **values}


@pytest.mark.parametrize("target", ["", "a b", "-oProxyCommand=x", "ada@-x", "host:port"])
def test_a_target_that_ssh_would_read_otherwise_is_refused(target: str):
    with pytest.raises(ConfigError):
        parsed_target(target)


def test_a_file_that_cannot_be_edited_safely_is_left_alone():
    text = 'hosts = { box = { kind = "ssh", host = "x" } }\n'
    with pytest.raises(ConfigError, match="by hand"):
        without_host(text, "box")
    with pytest.raises(ConfigError):
        with_host(text, "other", {"kind": "ssh", "host": "y"})


def test_ssh_host_names_leave_out_patterns_and_follow_includes(tmp_path: Path):
    (tmp_path / "more").write_text("Host inner\n  User x\n")
    (tmp_path / "config").write_text("Include more\nHost box *.example !no gpu-1\nHost=eq\nMatch host zzz\n")

    assert ssh_host_names(tmp_path / "config") == ["inner", "box", "gpu-1", "eq"]


def test_serve_over_http_answers_clients_and_prints_nothing_on_stdout(environment: dict[str, str], tmp_path: Path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "gpu_mcp_server", "serve", "--http", "--port", str(port), "--read-only"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        cwd=tmp_path,
        text=True,
    )
    assert process.stderr is not None
    assert any("Uvicorn running" in line for line in process.stderr)

    async def ask() -> tuple[CallToolResult, CallToolResult]:
        async with Client(f"http://127.0.0.1:{port}/mcp") as client:
            return await client.call_tool("list_problems", {}), await client.call_tool("write_files", {"files": {}})

    problems, refused = asyncio.run(ask())
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate()

    assert problems.structured_content == {"total": 0, "problems": []}
    assert refused.is_error
    assert out == ""


def test_a_job_that_outlasts_the_wait_is_waited_for_by_the_command_line(sandboxed: Run):
    arguments = {"command": ["sh", "-c", "read x; echo got $x"], "stdin": "it\n", "wait_s": 0}
    done = sandboxed("call", "run_command", "--args", json.dumps(arguments), "--json")
    assert json.loads(done.stdout)["stdout"] == "got it\n"
