"""Dispatchers: the smallest set of candidates, the code that chooses among them, and its verdict."""

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.problems.problem_table import Problems
from gpu_mcp_server.services.programs.dispatch_source import DispatchedPart, dispatcher_source, nearest
from gpu_mcp_server.services.programs.kernel_dispatch import score, smallest_set
from tests.laboratory import laboratory

SHAPES = [{"n": 64}, {"n": 20_000}]
PART = """
#include <stdint.h>
#define REPEATS(n) (n CHOSEN 1000 ? 6000000 / n : 1)
static int helper = 0;
typedef struct { int64_t n; } Sizes;
static void fill(const float *x, float *y, Sizes sizes) {
    for (int k = 0; k < REPEATS(sizes.n); k++) {
        for (int64_t i = 0; i < sizes.n; i++) y[i] = 2 * x[i] + 1;
        __asm__ volatile("" ::: "memory");
    }
    helper++;
}
int launch(const float *x, float *y, int64_t n) {
    fill(x, y, (Sizes){n});
    return 0;
}
"""
LARGE, SMALL = PART.replace("CHOSEN", "<"), PART.replace("CHOSEN", ">")
"""Slow at small sizes, and slow at large ones: by a millisecond, which no busy machine hides."""


def problem(shapes: list[dict[str, int]], output: str = "y") -> Any:
    tensors = [{"name": name, "dtype": "float32", "shape": [*shapes[0]]} for name in ("x", output)]
    from gpu_mcp_server.models.problem import TensorSpec

    x, y = (TensorSpec.model_validate(each) for each in tensors)
    text = "def reference(x):\n    return 2 * x + 1\n"
    return Problems.make_problem("twice plus one", "", "numpy", "reference", [x], [y], shapes, 1e-5, 1e-6, text)


@pytest.mark.parametrize(
    ("times", "weights", "chosen"),
    [
        ([[1.0, 9.0], [9.0, 1.0], [1.5, 1.5]], [], [0, 1]),
        ([[1.0, 1.02], [9.0, 1.0], [1.5, 1.5]], [], [0]),  # within 2 % alone
        ([[1.0, 9.0], [9.0, 1.0]], [10_000, 1], [0]),  # the other shape hardly counts
        ([[1.0, 9, 9, 9, 9, 9], [9, 1.0, 9, 9, 9, 9], [9, 9, 1.0, 9, 9, 9], [9, 9, 9, 1.0, 9, 9],
          [9, 9, 9, 9, 1.0, 9], [9, 9, 9, 9, 9, 1.0]], [], [0, 1, 2, 3, 4, 5]),  # more than are tried exactly
    ],
)  # fmt: skip
def test_the_smallest_set_is_within_two_per_cent_of_all(
    times: list[list[float]], weights: list[int], chosen: list[int]
):
    assert smallest_set(times, weights) == chosen
    assert score(chosen, times, weights) <= 1.02 * score(range(len(times)), times, weights)  # pyright: ignore


@pytest.mark.parametrize("language", ["c", "cpp", "launcher"])
@pytest.mark.parametrize(("tensor", "size"), [("y", "n"), ("log", "at"), ("max", "part"), ("math", "chosen")])
def test_generated_code_keeps_its_parts_apart_and_takes_the_nearest(
    language: str, tensor: str, size: str, tmp_path: Path
):
    """Both parts have the same names at their top; each answers its own sizes. A problem's names are its own."""
    answer = {"c": "int", "cpp": 'extern "C" int'}
    text = (
        "#include <stdint.h>\n#define ADDED {0}\nstatic float added(void) {{ return ADDED; }}\n"
        + answer.get(language, "")
        + " launch(const float *x, float *y, int64_t n) {{ y[0] = x[0] + added(); return 0; }}\n"
        if language in answer
        else "import inspect\nADDED = {0}\ndef added():\n    return ADDED\n"
        "def launch(x, y):\n    y[0] = x[0] + added() * ('added' in inspect.getsource(added))\n"
    )
    parts = [DispatchedPart(f"a-{n}", text.format(n + 1), "launch") for n in range(2)]
    choice = [({size: 64}, 0), ({size: 1024}, 1)]
    source = dispatcher_source(problem([dims for dims, _ in choice], tensor), language, parts, choice)
    file = tmp_path / f"d.{language if language != 'launcher' else 'py'}"
    file.write_text(source)
    sizes = {1: 1, 64: 1, 255: 1, 257: 2, 10**9: 2}
    if language == "launcher":
        space: dict[str, Any] = {}
        exec(compile(source, str(file), "exec"), space)
        found: dict[int, float] = {}
        for n in sizes:
            y = [0.0]
            space["launch"]([0.0], y, n)
            found[n] = y[0]
    else:
        compiler = {"c": "gcc", "cpp": "g++"}[language]
        command = [
            compiler,
            "-Wall",
            "-Werror",
            "-Wno-unused-function",
            "-shared",
            "-fPIC",
            file,
            "-o",
            tmp_path / "d.so",
            "-lm",
        ]
        subprocess.run(command, check=True)
        library = ctypes.CDLL(str(tmp_path / "d.so"))
        x, y = (ctypes.c_float * 1)(), (ctypes.c_float * 1)()
        found = {}
        for n in sizes:
            assert library.launch(x, y, ctypes.c_int64(n)) == 0
            found[n] = y[0]
    assert found == sizes
    assert [nearest([([64], 0), ([1024], 1)], [n]) + 1 for n in sizes] == [*sizes.values()]


@pytest.mark.timeout(600)
async def test_a_dispatcher_is_made_of_what_was_judged_and_judged_itself():
    async with laboratory() as lab:
        info = await lab.evaluation.registry.keep(problem(SHAPES))
        single = await lab.evaluation.registry.keep(problem(SHAPES[:1]))
        with pytest.raises(BadRequest, match="differ in no size"):
            await lab.programs.dispatch.make(single.problem_id)
        with pytest.raises(BadRequest, match="no correct attempts"):
            await lab.programs.dispatch.make(info.problem_id)
        verdicts = [
            await lab.evaluation.evaluator.evaluate(info.problem_id, CandidateSource(text, "c", "candidate.c"))
            for text in (LARGE, SMALL)
        ]
        large, small = (verdict.attempt_id for verdict in verdicts)
        alone = await lab.programs.dispatch.make(info.problem_id, [large])
        found = await lab.programs.dispatch.make(info.problem_id)
        assert found.source is not None
        source = (await lab.store.artifacts.read(found.source)).decode()

    assert alone.status == "single" and alone.attempt_id is None and "no dispatcher is needed" in alone.summary()
    assert found.status == "correct", found.reason
    assert {tuple(row.dims.values()): row.taken for row in found.rows} == {(64,): small, (20_000,): large}
    assert "hidden shapes" in found.covers and found.attempt_id not in (large, small)
    doubted = any(verdict.unconfirmable() for verdict in verdicts)
    assert ("are in doubt, and the choice rests on them" in found.summary()) == doubted
    assert large in source and small in source and found.single_over_best > 1.02 >= found.set_over_best
