"""Programs and GEAK-HIP tasks as problem files: what is made of them, what is refused and why."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpu_mcp_server.errors import BadRequest, LimitExceeded, NotFound, ProblemRefused
from gpu_mcp_server.services.problems.formats.base import ProblemSource
from gpu_mcp_server.services.problems.formats.detect import read_problem, source_at
from gpu_mcp_server.services.problems.problem_table import Problems
from tests.judge.program_harness import PROGRAM
from tests.laboratory import laboratory

TOML = """
name = "sines"
rtol = 1e-5
atol = 1e-6
build = ["gcc", "-O1", "-o", "app", "app.c", "-lm"]
run = ["./app", "{n}", "{seed}"]
replaces = "app.c"
cases = [{ n = 1000 }]
outputs = [{ name = "y", source = "out.bin", format = "binary", dtype = "float32" }]
"""
MAKEFILE = "HIPCC = g++\nTARGET = test_sines\n\n$(TARGET): sines.hip\n\t$(HIPCC) -x c++ $< -o $@ -lm\n"
EXTRACTOR = """
rtol = 1e-5
atol = 1e-6
build = ["make"]
run = ["./test_sines", "{n}", "{seed}"]
cases = [{ n = 100 }]
outputs = [{ name = "y", source = "out.bin", format = "binary", dtype = "float32" }]
"""
TASK = {"task": "sines", "instruction": "Make it faster.", "file_path": "sines", "file_name": "sines.hip"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.toml").write_text(TOML)
    (tmp_path / "app.c").write_text(PROGRAM)
    (tmp_path / "data.bin").write_bytes(b"\xff\x00")
    return tmp_path


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    (tmp_path / "sines").mkdir()
    (tmp_path / "sines/sines.hip").write_text(PROGRAM)
    (tmp_path / "sines/Makefile").write_text(MAKEFILE)
    (tmp_path / "sines/extractor.toml").write_text(EXTRACTOR)
    (tmp_path / "FromRe_instructions.json").write_text(json.dumps([TASK, {**TASK, "task": "other"}]))
    return tmp_path / "FromRe_instructions.json"


async def test_a_folder_with_a_program_is_read_whole_bytes_that_are_no_text_among_them(folder: Path):
    problem = await read_problem(await source_at(folder))

    assert problem.kind == "program" and problem.program is not None
    assert {path: file.data() for path, file in problem.program.files.items()} == {
        "app.c": PROGRAM.encode(),
        "data.bin": b"\xff\x00",
    }
    assert Problems.info(problem).program.inputs == "secret"  # type: ignore[union-attr]


async def test_another_file_makes_another_problem(folder: Path):
    first = await read_problem(await source_at(folder))
    (folder / "app.c").write_text(PROGRAM + "\n")
    assert (await read_problem(await source_at(folder))).problem_id != first.problem_id


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("{seed}", "{sed}"), "{sed}, which no case gives a value"),
        (('replaces = "app.c"', 'replaces = "main.c"'), "no file of the project"),
        ((', dtype = "float32"', ""), "has no dtype"),
        (('format = "binary"', 'format = "regex", pattern = "("'), "no regular expression"),
        (('source = "out.bin"', 'source = "../out.bin"'), "holds `..`"),
        (("[{ n = 1000 }]", "[]"), "cases"),
        (("[{ n = 1000 }]", "[{ n = 1 }, { m = 2 }]"), "other parameters"),
        (('name = "sines"', ""), "needs a name"),
        (("rtol = 1e-5", ""), "needs rtol"),
        (("replaces", "replace"), "replace: Extra inputs"),
        (('format = "binary"', 'form = "binary"'), "There it takes name, source, format, dtype, offset, skip_lines"),
        (
            ('format = "binary"', 'format = "raw"'),
            "There it takes 'binary', 'text', 'json', 'csv', 'regex' or 'exact'.",
        ),
        (('["./app", "{n}", "{seed}"]', '"./app"'), 'run = ["./app", "100"]'),
        (('source = "out.bin"', 'source = "out_{n}.bin"'), "its file has one name in all cases"),
        (("build", 'inputs = ["x"]\nbuild'), "generator"),
        (("build", 'files = ["b.c"]\nbuild'), "not in the folder"),
    ],
)
async def test_what_is_wrong_with_a_program_is_said(folder: Path, change: tuple[str, str], words: str):
    (folder / "program.toml").write_text(TOML.replace(*change))
    with pytest.raises(Exception, match=r".") as raised:
        await read_problem(await source_at(folder))
    assert words in str(raised.value), raised.value


async def test_a_project_that_is_too_large_is_refused_before_it_is_read(folder: Path):
    with (folder / "huge").open("wb") as file:
        file.truncate(9 << 20)
    with pytest.raises(LimitExceeded, match="more than 8 MiB"):
        await read_problem(await source_at(folder))


async def test_a_geak_task_is_a_program_whose_file_is_replaced(tasks: Path):
    problem = await read_problem(await source_at(Path(f"{tasks}#sines")))

    assert (problem.name, problem.description) == ("sines", "Make it faster.")
    program = problem.program
    assert program is not None
    assert (program.replaces, program.run[0], sorted(program.files)) == (
        "sines.hip",
        "./test_sines",
        ["Makefile", "sines.hip"],
    )
    assert set(program.said) == {"verdict", "time"}


async def test_of_several_geak_tasks_one_must_be_named(tasks: Path):
    with pytest.raises(BadRequest, match="2 tasks") as raised:
        await read_problem(await source_at(tasks))
    assert "sines, other" in str(raised.value.hint)


async def test_a_geak_task_without_an_extractor_is_refused_as_its_pass_is_not_believed(tasks: Path):
    (tasks.parent / "sines/extractor.toml").unlink()
    with pytest.raises(BadRequest, match="its own PASS is not believed"):
        await read_problem(await source_at(Path(f"{tasks}#sines")))


async def test_the_makefile_says_how_a_geak_task_is_built_and_run(tasks: Path):
    text = EXTRACTOR.replace('build = ["make"]', "").replace('run = ["./test_sines", "{n}", "{seed}"]', "")
    (tasks.parent / "sines/extractor.toml").write_text(text)
    program = (await read_problem(await source_at(Path(f"{tasks}#sines")))).program

    assert program is not None
    assert (program.build, program.run, program.secret()) == (
        ["make", "HIPCC=hipcc", "HIP_PLATFORM=amd"],
        ["./test_sines"],
        False,
    )


async def test_a_geak_task_whose_file_is_not_there_is_refused(tasks: Path):
    (tasks.parent / "sines/sines.hip").unlink()
    with pytest.raises(NotFound, match=r"sines\.hip"):
        await read_problem(await source_at(Path(f"{tasks}#sines")))


async def test_json_that_is_no_task_is_no_problem_file():
    with pytest.raises(BadRequest, match="no problem file"):
        await read_problem(ProblemSource("x.json", '[{"task": "a"}]'))


@pytest.mark.skipif(shutil.which("make") is None or shutil.which("g++") is None, reason="make or g++ is not installed")
async def test_program_and_task_are_built_and_tried_before_they_are_kept(folder: Path, tasks: Path):
    async with laboratory() as lab:
        kept = await lab.evaluation.registry.import_file(await source_at(folder / "program.toml"))
        task = await lab.evaluation.registry.import_file(await source_at(Path(f"{tasks}#sines")))

        assert (kept.registered, task.registered) == ("new", "new")
        assert "the answer to another seed" in (kept.trivial_answers_tried or [])
        assert kept.notes == ["verdicts will say: program: timed as a whole process; inputs secret"]
        assert "replace the project's, or the text of app.c alone" in kept.summary()
        assert len((await lab.evaluation.registry.problems()).problems) == 2


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [("return 0;", "return 1;", "exited with status 1"), ("int main", "int main(", "is not built")],
)
async def test_a_program_that_is_not_built_or_fails_is_refused(folder: Path, old: str, new: str, words: str):
    (folder / "app.c").write_text(PROGRAM.replace(old, new))
    async with laboratory() as lab:
        with pytest.raises(ProblemRefused, match=words):
            await lab.evaluation.registry.import_file(await source_at(folder))


HIP = """
#include <hip/hip_runtime.h>
#include <cstdio>
__global__ void twice(float *y, const float *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
int main() { return 0; }
"""


@pytest.mark.skipif(shutil.which("hipcc") is None, reason="hipcc is not installed")
async def test_a_hip_task_is_compiled_by_the_hipcc_that_is_there(tmp_path: Path):
    from gpu_mcp_server.services.builds.program_builds import ProgramBuilder, project_of

    (tmp_path / "twice").mkdir()
    (tmp_path / "twice/twice.hip").write_text(HIP)
    makefile = "HIP_PATH ?= /opt/rocm\nHIPCC = $(HIP_PATH)/bin/hipcc\nTARGET = test_twice\n"
    makefile += "$(TARGET): twice.hip\n\t$(HIPCC) --offload-arch=gfx906 $< -o $@\n"
    (tmp_path / "twice/Makefile").write_text(makefile)
    extractor = 'rtol = 0\natol = 0\ncases = [{ n = 1 }]\noutputs = [{ name = "y", format = "text" }]\n'
    (tmp_path / "twice/extractor.toml").write_text(extractor)
    task = {"task": "twice", "instruction": "", "file_path": "twice", "file_name": "twice.hip"}
    (tmp_path / "FromRe_instructions.json").write_text(json.dumps([task]))
    program = (await read_problem(await source_at(tmp_path))).program
    assert program is not None
    command = ["hipcc", "--offload-arch=gfx906", "-c", "-o", "twice.o", "twice.hip"]
    environment = {**os.environ, "HIP_PLATFORM": "amd", "TMPDIR": str(tmp_path)}  # clang leaves folders there
    if subprocess.run(command, cwd=tmp_path / "twice", env=environment, capture_output=True, check=False).returncode:
        pytest.skip("this hipcc compiles nothing: its device libraries are not installed")
    (tmp_path / "twice/twice.o").unlink()
    async with laboratory() as lab:
        builder = lab.evaluation.registry._programs._builder
        assert isinstance(builder, ProgramBuilder)
        built = await builder.build(project_of(program), program.build, host="local")

        assert built.status == "ok", built.summary()
        assert (await builder.tree(built.artifact_id or ""))["test_twice"].data[:4] == b"\x7fELF"
