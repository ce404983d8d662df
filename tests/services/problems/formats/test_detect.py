"""Problem files: which format, and what is made of it."""

import inspect
from pathlib import Path

import pytest

from gpu_mcp_server.errors import BadRequest, NotFound, PathRefused
from gpu_mcp_server.models.problem import ImportOverrides
from gpu_mcp_server.services.problems.formats import kernelbench
from gpu_mcp_server.services.problems.formats.base import ProblemSource
from gpu_mcp_server.services.problems.formats.detect import read_problem, source_at
from gpu_mcp_server.services.problems.formats.torch_call import torch_problem
from gpu_mcp_server.services.problems.problem_table import Problems
from tests.laboratory import PROBLEM, client_of

TOML = """
name = "twice"
inputs = [{ name = "x", dtype = "float32", shape = ["n"] }]
outputs = [{ name = "y", dtype = "float32", shape = ["n"] }]
shapes = [{ n = 100 }]
rtol = 1e-5
atol = 1e-6

[trials]
constraints = ["n % 4 == 0"]
"""
REFERENCE = "def reference(x):\n    return 2 * x + 1\n"


async def test_our_own_file_takes_its_reference_from_beside_it(tmp_path: Path):
    (tmp_path / "problem.toml").write_text(TOML)
    (tmp_path / "reference.py").write_text(REFERENCE)
    by_folder = await read_problem(await source_at(tmp_path))
    by_file = await read_problem(await source_at(tmp_path / "problem.toml"))

    assert by_folder == by_file
    assert (by_folder.name, by_folder.reference, by_folder.constraints) == ("twice", REFERENCE, ["n % 4 == 0"])


OF_OTHER_KINDS = {
    "problem_id", "content_hash", "kind", "state", "constants", "program", "degenerate", "layouts", "copy_state"
}  # fmt: skip


async def test_the_same_problem_has_the_same_hash_by_file_and_by_arguments():
    source = ProblemSource("", f"reference = '''{REFERENCE}'''\n{TOML}")
    problem = await read_problem(source)
    given = problem.model_dump(include={*inspect.signature(Problems.make_problem).parameters})

    assert Problems.make_problem(**given).problem_id == problem.problem_id


async def test_which_time_ranks_is_wished_of_a_suite_s_problem_and_said_in_a_file_of_our_own():
    file = f"reference = '''{REFERENCE}'''\n{TOML}basis = 'call'\n"
    model = "class Model: ...\ndef get_inputs(): return []\ndef get_init_inputs(): return []\n"
    wish = ImportOverrides(basis="call")

    assert (await read_problem(ProblemSource("", file))).basis == "call"
    assert (await read_problem(ProblemSource("m.py", model, wish=wish))).basis == "call"
    assert (await read_problem(ProblemSource("m.py", model))).basis == "device"
    assert torch_problem("torch.sin", [[8]], "float32", wish).basis == "call"
    assert kernelbench.suite_basis(ProblemSource("m.py", model)) == "kernelbench", "as the suite itself times"
    assert kernelbench.suite_basis(ProblemSource("", file)) == "device"


async def test_library_and_function_of_our_own_file_are_read_from_its_reference_as_by_arguments():
    text = "import torch\ndef _half(x):\n    return x / 2\ndef tripled(x):\n    return 3 * torch.tanh(x)\n"
    problem = await read_problem(ProblemSource("", f"reference = '''{text}'''\n{TOML}"))

    assert (problem.framework, problem.entry) == ("torch", "tripled")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TOML, "sent as text"),
        ("reference = 'x'\nreference_path = 'y'\n" + TOML, "both given"),
        (TOML.replace("rtol = 1e-5", ""), "rtol: Field required"),
        (TOML.replace("rtol = 1e-5\natol = 1e-6", ""), "rtol, atol: Field required"),
        (TOML.replace("[trials]", "[trial]"), "trial: Extra inputs"),
        ('constraints = ["n % 8 == 0"]\n' + TOML, r"constraints is a key of \[trials\]"),
        (TOML + 'requires = ["fp3"]\n', r"trials\.requires\.0: .* There it takes 'fp4 tensor core', [^:;]* core'\.$"),
        (
            TOML.replace("float32", "f32"),
            r"dtype: 'f32' is none of the words there\. There it takes 'float16', [^.:]*\.$",
        ),
        (TOML + "[implementations.a]\nsauce = 1\n", r"There it takes language, source, path, entry, flags\.$"),
        (TOML.replace("n = 100", "n = 'a'"), r"shapes\.0\.n: .* Correct it\.$"),
        ("hello", "no problem file of a known format"),
        ("", "no problem file of a known format"),
        ("class Model: pass\ndef get_inputs(:", "it is not Python: line 2: invalid syntax"),
        ("def get_inputs(): return []", "it does not define Model, get_init_inputs"),
        (TOML + "[[", "it is not TOML: Invalid initial character"),
    ],
)
async def test_what_is_wrong_with_a_file_is_said(text: str, words: str):
    with pytest.raises(BadRequest, match=words):
        await read_problem(ProblemSource("", text))


async def test_a_reference_does_not_leave_the_folder(tmp_path: Path):
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "secret.py").write_text(REFERENCE)
    (inner / "link.py").symlink_to(tmp_path / "secret.py")
    for name, error in (("../secret.py", PathRefused), ("link.py", BadRequest)):
        (inner / "problem.toml").write_text(f"reference_path = '{name}'\n{TOML}")
        with pytest.raises(error):
            await read_problem(await source_at(inner))


async def test_a_folder_without_a_problem_says_what_it_is_known_by(tmp_path: Path):
    with pytest.raises(NotFound, match=r"problem\.toml"):
        await source_at(tmp_path)


async def test_a_file_is_registered_by_the_tool(tmp_path: Path):
    (tmp_path / "problem.toml").write_text(TOML)
    (tmp_path / "reference.py").write_text(REFERENCE)
    data = tmp_path / "data"
    data.mkdir()
    async with client_of(data) as client:
        result = await client.call_tool("import_problem", {"path": str(tmp_path), "host": None})

    assert not result.is_error, result.content
    assert result.structured_content["registered"] == "new"
    assert PROBLEM["name"] != result.structured_content["name"] == "twice"
