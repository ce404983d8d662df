"""Programs from their file to a verdict, in real sandboxes, through the tools."""

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from tests.judge.program_harness import PROGRAM
from tests.judge.programs.test_program_runs import program
from tests.laboratory import HONEST, PROBLEM, Folder, called, client_of, refused
from tests.services.problems.formats.test_program_formats import EXTRACTOR, MAKEFILE, TASK, TOML

pytestmark = pytest.mark.skipif(shutil.which("make") is None or shutil.which("g++") is None, reason="no make or g++")
SMOKE = {"timing": {"tier": "smoke"}}


@pytest.fixture(scope="module")
async def client() -> AsyncIterator[Client]:
    with Folder() as folder:
        async with client_of(folder) as client:
            yield client


@pytest.fixture(scope="module")
async def problem_id(client: Client, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("problem")
    (folder / "program.toml").write_text(TOML)
    (folder / "app.c").write_text(PROGRAM)
    return (await called(client, "import_problem", path=str(folder)))["problem_id"]


async def judged(client: Client, problem_id: str, **given: Any) -> Any:
    return await called(client, "evaluate_kernel", problem_id=problem_id, **given)


async def test_a_file_in_place_of_the_programs_own_is_timed_as_a_whole_process(client: Client, problem_id: str):
    text = program('work(n, s, "out.bin"); puts("PASS"); return 0;')
    found = await judged(client, problem_id, source=text, language="program")

    assert (found["verdict"], found["language"], found["tier"]) == ("correct", "program", "performance")
    assert found["weaker"] == "program: timed as a whole process; inputs secret"
    assert found["said"] == ["verdict: PASS"]
    (shape,) = found["shapes"]
    assert shape["dims"] == {"n": 1000} and shape["calls_checked"] >= 7
    assert shape["candidate"]["low_us"] <= shape["candidate"]["median_us"] <= shape["candidate"]["high_us"]
    assert found["speedup"] == shape["speedup"]
    listed = (await called(client, "list_problems", problem_id=problem_id))["problems"][0]
    assert listed["program"]["replaces"] == "app.c" and found["attempt_id"] in listed["best"]
    audited = await called(client, "audit_attempt", attempt_id=found["attempt_id"])
    assert audited["outcome"] in ("confirmed", "not_comparable"), audited


CHEATS = {
    "goes on in a session of its own": (
        'mkfifo("out.bin", 0600); if (!fork()) { setsid(); if (!fork())'
        ' { looked_for_again("out.bin"); work(n, s, "out.bin"); sleep(30); } _exit(0); }'
        "return 0;",
        "cheat",
        "finished after it exited",
    ),
    "leaves a process behind": (
        'work(n, s, "out.bin"); if (!fork()) { setsid(); sleep(30); _exit(0); } return 0;',
        "cheat",
        "processes running when it exited",
    ),
    "finds what an earlier run left": (
        'char *places[] = {"/tmp/x", "/dev/shm/x", "/job/x"}; for (int i = 0; i < 3; i++) {'
        ' if (!access(places[i], F_OK)) return 4; fclose(fopen(places[i], "w")); } work(n, s, "out.bin"); return 0;',
        "correct",
        "",
    ),
    "writes without end": (
        'char b[1 << 16]; FILE *f = fopen("out.bin", "wb"); for (;;) fwrite(b, 1, sizeof b, f);',
        "incorrect",
        "which is the limit",
    ),
    "kills all that it can": ("kill(-1, SIGKILL); sleep(30);", "incorrect", ""),
    "reads what the judge knows": (
        'return system("cat /job/task.json /job/../*/task.json 2>/dev/null") == 0 ? 0 : 5;',
        "incorrect",
        "exited with status 5",
    ),
}


@pytest.mark.parametrize("name", CHEATS)
async def test_in_its_sandbox_a_program_is_seen_through_that(client: Client, problem_id: str, name: str):
    body, verdict, words = CHEATS[name]
    tier = "correctness" if verdict == "correct" else "smoke"
    found = await judged(client, problem_id, source=program(body), language="program", timing={"tier": tier})

    assert found["verdict"] == verdict, found
    assert words in found.get("reason", "")


async def test_a_workspace_takes_the_place_of_the_projects_files(client: Client, problem_id: str):
    files = {"app.c": '#include "more.h"\n' + PROGRAM, "more.h": "#define MORE 1\n"}
    workspace = (await called(client, "write_files", files=files))["workspace_id"]
    found = await judged(client, problem_id, workspace_id=workspace, **SMOKE)
    assert (found["verdict"], found["tier"]) == ("correct", "smoke")
    assert "smoke tier: not timed" in found["weaker"]


async def test_a_local_folder_takes_the_place_of_the_projects_files(client: Client, problem_id: str, tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/app.c").write_text(PROGRAM.replace("sinf(", "cosf("))
    found = await judged(client, problem_id, path=str(tmp_path / "mine"), **SMOKE)
    assert found["verdict"] == "incorrect" and "output y[0]" in found["reason"]


async def test_what_is_not_built_comes_back_with_its_diagnostics(client: Client, problem_id: str):
    found = await judged(client, problem_id, source=PROGRAM + "}", language="program")
    assert found["status"] == "compile_failed" and found["diagnostics"][0]["severity"] == "error"


async def test_flags_go_behind_the_build_command(client: Client, problem_id: str):
    guarded = "#ifndef GOOD\n#error no flag\n#endif\n" + PROGRAM
    arguments = {"source": guarded, "language": "program", **SMOKE}
    assert (await judged(client, problem_id, **arguments))["status"] == "compile_failed"
    assert (await judged(client, problem_id, flags=["-DGOOD"], **arguments))["verdict"] == "correct"


async def test_a_program_runs_where_it_was_built(client: Client, tmp_path: Path):
    """CMake writes the folder of a shared library into the programs that it links: there it must lie in each run."""
    (tmp_path / "program.toml").write_text(TOML.replace('["gcc", "-O1", "-o", "app", "app.c", "-lm"]', '["make"]'))
    linked = "gcc -o $@ app.c -L$(CURDIR)/lib -lwork -Wl,-rpath,$(CURDIR)/lib -lm"
    library = "mkdir -p lib; gcc -shared -fPIC -o $@ work.c"
    (tmp_path / "Makefile").write_text(f"app: lib/libwork.so\n\t{linked}\nlib/libwork.so:\n\t{library}\n")
    (tmp_path / "work.c").write_text("float scale(void) { return 2; }\n")
    source = PROGRAM.replace("int main", "float scale(void);\nint main").replace("float y = ", "float y = scale() * ")
    (tmp_path / "app.c").write_text(source)
    problem = (await called(client, "import_problem", path=str(tmp_path)))["problem_id"]
    slower = source.replace("scale() * ", "2 * ")
    assert (await judged(client, problem, source=slower, language="program", **SMOKE))["verdict"] == "correct"
    wrong = source.replace("scale() * ", "3 * ")
    assert (await judged(client, problem, source=wrong, language="program", **SMOKE))["verdict"] == "incorrect"


async def test_a_folder_is_no_candidate_for_a_kernel(client: Client, tmp_path: Path):
    (tmp_path / "kernel.c").write_text(HONEST)
    kernel = (await called(client, "register_problem", **PROBLEM))["problem_id"]
    said = await refused(client, "evaluate_kernel", problem_id=kernel, path=str(tmp_path))
    assert "wants a kernel" in said


async def test_a_geak_task_is_judged_by_its_outputs_and_its_own_pass_is_only_told(client: Client, tmp_path: Path):
    (tmp_path / "sines").mkdir()
    (tmp_path / "sines/sines.hip").write_text(PROGRAM)
    (tmp_path / "sines/Makefile").write_text(MAKEFILE)
    (tmp_path / "sines/extractor.toml").write_text(EXTRACTOR)
    (tmp_path / "FromRe_instructions.json").write_text(json.dumps([TASK]))
    problem = await called(client, "import_problem", path=str(tmp_path))
    table = await called(
        client,
        "evaluate_kernels",
        problem_id=problem["problem_id"],
        candidates=[
            {"name": "same", "source": PROGRAM + "\n", "language": "program"},
            {"name": "claims", "source": program('puts("PASSED 0.001 ms"); return 0;'), "language": "program"},
        ],
        tier="smoke",
    )
    assert {row["name"]: row["verdict"] for row in table["rows"]} == {"same": "correct", "claims": "incorrect"}
