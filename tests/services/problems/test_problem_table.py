import hashlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.errors import BadRequest, LimitExceeded, NotFound
from gpu_mcp_server.models.problem import Implementation, Problem, ProblemList, TensorSpec
from gpu_mcp_server.runtime.result_limits import limit_result
from gpu_mcp_server.services.evaluation.problem_registry import refusal_of
from gpu_mcp_server.services.problems import problem_identity
from gpu_mcp_server.services.problems.launcher_signatures import MISCALLED, signature_mismatch
from gpu_mcp_server.services.problems.problem_identity import content_hash
from gpu_mcp_server.services.problems.problem_table import Problems
from gpu_mcp_server.store.database import Database

REFERENCE = """
import numpy as np

def softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)
"""


def softmax(**changes: Any) -> Problem:
    arguments: dict[str, Any] = {
        "name": "softmax",
        "description": "Row-wise.",
        "framework": "numpy",
        "entry": "softmax",
        "inputs": [TensorSpec(name="x", dtype="float32", shape=["rows", "cols"])],
        "outputs": [TensorSpec(name="y", dtype="float32", shape=["rows", "cols"])],
        "shapes": [{"rows": 4, "cols": 8}, {"rows": 1, "cols": 1}],
        "rtol": 1e-5,
        "atol": 1e-7,
        "reference": REFERENCE,
    }
    return Problems.make_problem(**{**arguments, **changes})


@pytest.fixture
async def problems(tmp_path: Path) -> AsyncIterator[Problems]:
    async with await Database.open(tmp_path / "lab.sqlite3") as db:
        yield Problems(db)


async def test_a_problem_is_kept_once_and_comes_back_whole(problems: Problems):
    problem = softmax()
    assert await problems.add(problem) == "new"
    assert await problems.add(softmax()) == "already"
    assert await problems.get(problem.problem_id) == problem
    other = softmax(rtol=1e-4)
    assert await problems.add(other) == "new"
    assert list(await problems.list()) == [other, problem]
    assert await problems.count() == 2


async def test_an_unknown_problem_names_the_list(problems: Problems):
    with pytest.raises(NotFound, match="list_problems"):
        await problems.get("p-nothing")


def test_the_id_is_the_hash_of_what_is_asked_for():
    problem = softmax()
    assert problem.problem_id == f"p-{problem.content_hash[:12]}"
    assert content_hash(problem) == problem.content_hash
    same = softmax(shapes=[{"cols": 8, "rows": 4}, {"cols": 1, "rows": 1}])
    assert same.content_hash == problem.content_hash
    changes: list[dict[str, Any]] = [
        {"reference": REFERENCE + "\n"},
        {"shapes": [{"rows": 4, "cols": 8}]},
        {"rtol": 0.0},
        {"framework": "torch"},
    ]
    hashes = {softmax(**change).content_hash for change in changes}
    assert len(hashes | {problem.content_hash}) == 5
    naive = Implementation(language="c", source="int launch;")
    beside: list[dict[str, Any]] = [{"name": "o"}, {"description": "d"}, {"implementations": {"naive": naive}}]
    assert {softmax(**change).content_hash for change in beside} == {problem.content_hash}


def test_a_launcher_takes_inputs_outputs_then_dimensions_in_order_of_use():
    info = Problems.info(softmax())
    assert info.launcher_c == "int launch(const float* x, float* y, int64_t rows, int64_t cols)"
    assert info.launcher_cuda == (
        'extern "C" int launch(const float* x, float* y, int64_t rows, int64_t cols, cudaStream_t stream)'
    )


def test_a_registration_says_the_whole_contract_on_one_screen():
    text = Problems.info(softmax()).model_copy(update={"registered": "new"}).summary()

    for said in ("int launch(const float* x", "cudaStream_t stream", "forward(self, x)", "read-only", "row-major",
                 "write them in full", "returns 0", "-lm",
                 "Hidden shapes", "rtol", "evaluate_kernel"):  # fmt: skip
        assert said in text, said
    assert len(text) <= 2400 and len(text.splitlines()) <= 16
    assert not re.search(r"hash|[0-9a-f]{16}", text)


def test_many_problems_are_listed_without_what_holds_for_all():
    info = Problems.info(softmax())
    one, two = ProblemList(problems=[info]).summary(), ProblemList(problems=[info, info]).summary()

    assert "read-only" in one and "read-only" not in two and "list_problems with a problem_id" in two


@pytest.mark.parametrize(
    ("reason", "helps"),
    [
        ("the reference failed: IndexError: index 64 is out of bounds for axis 0 with size 50", True),
        ("the reference failed: RuntimeError: index out of range in self", True),
        ("the reference failed: ZeroDivisionError: division by zero", False),
    ],
)
def test_indices_that_lead_out_of_a_small_axis_are_told_their_range(reason: str, helps: bool):
    inputs = [TensorSpec(name="ids", dtype="int32", shape=["n"]), TensorSpec(name="w", dtype="float32", shape=["v"])]
    problem = softmax(
        inputs=inputs,
        outputs=[TensorSpec(name="y", dtype="float32", shape=["n"])],
        shapes=[{"n": 8, "v": 50}],
        reference="def softmax(ids, w):\n    return w[ids]",
    )
    said = str(refusal_of(problem, {"reason": reason}).hint)
    assert ("ids holds whole numbers from 0 to 99: declare 100 or more" in said) is helps
    made = [inputs[0].model_copy(update={"distribution": "made"}), inputs[1]]
    for other in (softmax(), problem.model_copy(update={"inputs": made})):
        assert "0 to 99" not in str(refusal_of(other, {"reason": reason}).hint)


def test_whole_numbers_that_do_not_fit_each_other_are_told_as_drawn():
    """SciPy's csr_matrix and the assertions of a paged attention fail so, at declared shapes and in any case."""
    inputs = [TensorSpec(name=n, dtype="int32", shape=["rows"]) for n in ("ptr", "ids")]
    reason = "the reference failed to compute: Traceback (most recent call last):\n  File\nValueError: not from 0"
    problem = softmax(inputs=inputs, reference="def softmax(ptr, ids):\n    return ids[ptr]")
    said = str(refusal_of(problem, {"reason": reason}).hint)
    assert "ptr, ids are drawn each by itself, from 0 to 99: if that is the fault, let get_inputs of" in said

    own = "the reference failed to compute: output y is float64, declared as int32"
    assert "drawn" not in str(refusal_of(problem, {"reason": own}).hint)

    spec = {"q": {"shape": ["n"], "dtype": "float32"}, "ptr": {"shape": ["m"], "dtype": "int32"}}
    trace = softmax().model_copy(
        update={
            "inputs": [],
            "adapter": {"kind": "trace"},
            "files": {"definition.json": json.dumps({"inputs": spec})},
            "cases": [{"axes": {}, "inputs": {name: {"type": "random"} for name in spec}}],
        }
    )
    said = str(refusal_of(trace, {"reason": reason}).hint)
    assert "ptr is drawn by itself, from 0 to 99: if that is the fault, give them as safetensors" in said


def test_a_list_that_is_shortened_says_where_it_goes_on():
    """A client that reads text alone finds the problems that did not fit."""
    info = Problems.info(softmax())
    every = [info.model_copy(update={"problem_id": f"p-{number}"}) for number in range(10)]
    data, text = limit_result(ProblemList(problems=every, offset=20, total=35))

    shown = len(data["problems"])
    assert 1 < shown < 10 and "p-0" in text and f"p-{shown}" not in text
    assert f"(21 to {20 + shown} of 35; go on with offset {20 + shown})" in text
    assert "go on" not in ProblemList(problems=every, offset=20, total=30).summary()


def test_each_type_has_its_c_and_its_cuda_name():
    names = ["float16", "bfloat16", "float64", "int8", "uint8", "int32", "int64"]
    inputs = [TensorSpec(name=f"t{i}", dtype=name, shape=["n", 3]) for i, name in enumerate(names)]
    problem = softmax(
        inputs=inputs,
        outputs=[TensorSpec(name="y", dtype="float16", shape=[])],
        shapes=[{"n": 2}],
        reference="def softmax(*args): ...",
    )
    info = Problems.info(problem)
    assert info.launcher_c == (
        "int launch(const uint16_t* t0, const uint16_t* t1, const double* t2, const int8_t* t3, "
        "const uint8_t* t4, const int32_t* t5, const int64_t* t6, uint16_t* y, int64_t n)"
    )
    assert "const __half* t0, const __nv_bfloat16* t1," in info.launcher_cuda
    assert "__half* y, int64_t n, cudaStream_t stream" in info.launcher_cuda


def test_symbols_are_named_as_the_problem_names_them_and_shapes_are_up_to_500():
    problem = softmax(
        inputs=[TensorSpec(name="X", dtype="float32", shape=["M", "H_qo"])],
        outputs=[TensorSpec(name="y", dtype="float32", shape=["M", "H_qo"])],
        shapes=[{"M": m, "H_qo": 8} for m in range(4, 504)],
        constraints=["M >= 2", "H_qo % 8 == 0"],
        flops="4 * M * H_qo",
    )
    info = Problems.info(problem)
    assert info.launcher_c == "int launch(const float* X, float* y, int64_t M, int64_t H_qo)"
    assert len(info.shapes) == 500
    with pytest.raises(BadRequest, match="H_qo"):
        softmax(**{**problem.model_dump(include={"inputs", "outputs", "constraints"}), "shapes": [{"M": 4, "H_qo": 9}]})


X = TensorSpec(name="x", dtype="float32", shape=["n"])
Y = TensorSpec(name="y", dtype="float32", shape=["n"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shapes": [{"rows": 4}]}, "cols no value"),
        ({"shapes": [{"rows": 4, "cols": 1, "depth": 2}]}, "depth"),
        ({"shapes": []}, "0 shapes"),
        ({"shapes": [{"rows": 0, "cols": 1}]}, "below 1"),
        ({"shapes": [{"rows": -4, "cols": 1}]}, "below 1"),
        ({"shapes": [{"rows": 4, "cols": 1}] * 2}, "twice"),
        ({"shapes": [{"rows": "many", "cols": 1}]}, r"shapes\.0\.rows"),
        ({"inputs": []}, "inputs has 0"),
        ({"outputs": []}, "outputs has 0"),
        ({"outputs": [TensorSpec(name="x", dtype="float32", shape=["rows", "cols"])]}, "'x' names more than one"),
        ({"outputs": [TensorSpec(name="rows", dtype="float32", shape=["rows", "cols"])]}, "'rows' names more"),
        ({"outputs": [TensorSpec(name="float", dtype="float32", shape=["rows", "cols"])]}, "'float' cannot"),
        ({"outputs": [TensorSpec(name="stream", dtype="float32", shape=["rows", "cols"])]}, "'stream' cannot"),
        ({"outputs": [TensorSpec(name="NULL", dtype="float32", shape=["rows", "cols"])]}, "'NULL' cannot"),
        ({"shapes": [{"rows": 4, "cols": n} for n in range(1, 502)]}, "501 shapes.* 1 to 500"),
        ({"outputs": [{"name": "Y;", "dtype": "float32", "shape": []}]}, r"outputs\.0\.name"),
        ({"outputs": [TensorSpec(name="y", dtype="float32", shape=["rows", "cols", 0])]}, "below 1"),
        ({"framework": "jax"}, "framework"),
        ({"rtol": float("nan")}, "rtol"),
        ({"atol": -1.0}, "atol"),
        ({"name": " "}, "name"),
        ({"entry": "softmin"}, "It defines softmax"),
        ({"entry": "a b"}, "no Python name"),
        ({"entry": "def"}, "no Python name"),
        ({"reference": "def softmax(x:"}, "line 1"),
        ({"reference": "\0"}, "not Python"),
        ({"reference": "-" * 100_000 + "1"}, "not Python"),
        ({"reference": "async def softmax(x): ..."}, "async"),
        ({"reference": "def softmax(): ..."}, "with 1 input, which"),
        ({"reference": "def softmax(x, y): ..."}, "with 1 input, which"),
        ({"reference": "def softmax(x, *, y): ..."}, "give y a default"),
        ({"reference": "if True:\n    def softmax(x): ..."}, "nothing"),
        (
            {"inputs": [TensorSpec(name="x", dtype="bfloat16", shape=["rows", "cols"], distribution="full")]},
            "floats is drawn as full",
        ),
        (
            {"inputs": [TensorSpec(name="x", dtype="complex64", shape=["rows", "cols"])]},
            "x is complex64, .* float32 with a last dimension of 2",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused_with_the_reason(changes: dict[str, Any], words: str):
    with pytest.raises(BadRequest, match=words):
        softmax(**changes)


@pytest.mark.parametrize(
    "reference",
    [
        "def softmax(x, axis=1): ...",
        "def softmax(x, /): ...",
        "def softmax(*tensors): ...",
        "softmax = lambda x: x",
        "def softmax(x):\n    '\\d'",
    ],
)
def test_any_way_to_define_the_entry_will_do(reference: str):
    assert softmax(reference=reference).reference == reference


def test_a_gibibyte_a_shape_is_the_limit():
    pair = {"inputs": [X], "outputs": [Y]}
    softmax(**pair, shapes=[{"n": 1 << 27}])
    with pytest.raises(LimitExceeded, match="1073741824"):
        softmax(**pair, shapes=[{"n": (1 << 27) + 1}])
    with pytest.raises(LimitExceeded):
        softmax(**pair, shapes=[{"n": 10**30}])


def test_a_mebibyte_of_reference_is_the_limit():
    with pytest.raises(LimitExceeded, match="1048576"):
        softmax(reference=REFERENCE + "#" * (1 << 20))


def test_a_problem_without_later_fields_keeps_the_hash_that_it_had_before_them():
    problem = softmax()
    before = "framework entry inputs outputs shapes rtol atol reference".split()  # noqa: SIM905
    old = problem.model_dump(mode="json", include=set(before))
    text = json.dumps(old, sort_keys=True, separators=(",", ":"))
    first = {**old, "name": problem.name, "description": problem.description}
    of_old = json.dumps(first, sort_keys=True, separators=(",", ":"))
    assert content_hash(problem, 1) == hashlib.sha256(of_old.encode()).hexdigest()
    assert problem.content_hash == hashlib.sha256(text.encode()).hexdigest()
    assert len({softmax(**change).content_hash for change in LATER} | {problem.content_hash}) == len(LATER) + 1
    known = {*before, *problem_identity.LATER, *problem_identity.BESIDE, "problem_id", "content_hash"}
    assert set(Problem.model_fields) == known, "a field that came later counts where it is not its default"


LATER: list[dict[str, Any]] = [
    {"constraints": ["cols >= 1"]},
    {"fixed_shapes": True},
    {"distributions": "declared"},
    {"precision": "strict"},
    {"basis": "call"},
]


@pytest.mark.parametrize(
    ("constraint", "says"),
    [
        ("cols % 4 == 0", "declared shape"),
        ("cols == 2 * rows + 1", "declared shape"),
        ("cols % 0 == 0", "declared shape"),
        ("cols % 2.0 == 0", "cannot be read"),
        ("2 <= cols <= 4096", "cannot be read"),
        ("cols % 2 == 0 and rows == 1", "cannot be read"),
        ("cols" + " + 1" * 100 + " == 1", "cannot be read"),
        ("k <= 4096", "'k', which no tensor uses"),
        ("cols == 2 * (_k - 1)", "'k', which no tensor uses"),
        ("__import__('os') == 1", "cannot be read"),
        ("rows", "cannot be read"),
        ("", "cannot be read"),
    ],
)
def test_a_constraint_that_is_none_or_is_broken_is_refused(constraint: str, says: str):
    with pytest.raises(BadRequest, match=re.escape(says)):
        softmax(constraints=[constraint])


@pytest.mark.parametrize(
    ("constraint", "alone"),
    [
        ("2 <= cols <= 4096", "`2 <= cols`, `cols <= 4096`."),
        ("cols % 2 == 0 and in < cols <= 2 * (rows + 1)", "`cols % 2 == 0`, `in < cols`, `cols <= 2 * (rows + 1)`."),
    ],
)
def test_comparisons_that_are_joined_are_to_be_written_alone(constraint: str, alone: str):
    with pytest.raises(BadRequest, match="cannot be read") as refused:
        softmax(constraints=[constraint])
    assert refused.value.hint == f"Write each comparison alone: {alone}"


def test_constraints_are_said_with_the_problem():
    problem = softmax(constraints=["cols  <=  4096", "rows<=cols", "rows != 7"], fixed_shapes=True)
    assert "conditions: cols <= 4096; rows<=cols; rows != 7; no hidden shapes" in Problems.info(problem).summary()


def test_the_time_that_ranks_is_said_with_the_problem_where_it_is_not_the_usual_one():
    said = "conditions: a GPU's time is that of "
    assert said + "a call in a loop, with launching" in Problems.info(softmax(basis="call")).summary()
    assert said + "each call by itself, by events" in Problems.info(softmax(basis="kernelbench")).summary()
    assert said not in Problems.info(softmax()).summary()
    with pytest.raises(BadRequest, match="basis: Input should be 'device', 'call' or 'kernelbench'"):
        softmax(basis="events")


def test_a_problem_with_gradients_has_cotangents_and_gradients_and_its_function_takes_neither():
    x, k = (TensorSpec(name=n, dtype=d, shape=["n"]) for n, d in (("x", "float32"), ("k", "int64")))
    given = ("p", "", "torch", "f", [x, k], [x.model_copy(update={"name": "y"})], [{"n": 8}], 1e-5, 1e-6)
    problem = Problems.make_problem(*given, "def f(x, k):\n    return x\n", backward=True)

    assert [t.name for t in problem.inputs] == ["x", "k", "d_y"] and problem.backward == 2
    assert [t.name for t in problem.outputs] == ["y", "grad_x"]
    assert "class ModelNew: forward(self, x, k)" in Problems.info(problem).launcher_python
    with pytest.raises(BadRequest, match="torch reference"):
        Problems.make_problem(*given[:2], "numpy", *given[3:], "def f(x, k):\n    return x\n", backward=True)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("int launch(const float *x, float *y, int64_t rows, int64_t cols) {", None),
        ("int launch(const float *x, float *y, /* , */ int64_t rows, int64_t cols)\n{", None),
        ("int launch(const float *x, float *y, int64_t rows) {", 3),
        ("int launch(const float *x, float *y, int64_t rows, int64_t cols, int64_t more) {", 5),
        ("int launch(void) {", 0),
        ("int launch(TENSORS, int64_t rows) {", None),
        ("// int launch(const float *x) {\nint launch(const float *x, float *y, int64_t rows, int64_t cols) {", None),
        ("int other(const float *x) {", None),
        ('int launch(const float *x, float *y, int64_t rows) { puts("' + 200_000 * "/* " + '"); }', 3),
    ],
    ids=lambda given: str(given)[:60],
)
def test_a_launcher_with_another_number_of_parameters_is_seen_in_its_text(source: str, count: int | None):
    said = signature_mismatch(softmax(), source, "launch", "c")

    assert (
        said.startswith(f"launch is defined with {count} parameters and called with 4: int launch(")
        if (count is not None)
        else not said
    )
    assert not signature_mismatch(softmax(), source, "launch", "triton")


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        ("int launch(const float *x, float *y, int64_t rows, int64_t cols) {", ""),
        ("int launch(const float *a, float *b, int m, int n) {", ""),
        ("int launch(const float4 *x, char *y, int64_t rows, int64_t cols) {", ""),
        ("auto launch(const float *x, float *y, int64_t rows, int64_t cols) {", ""),
        (
            "void launch(const float *x, float *y, int64_t rows, int64_t cols) {",
            "returns void and must return int, 0 for",
        ),
        ("void launch(const float *x, float *y) {", "success; it is defined with 2 parameters and called with 4: int"),
        ("int launch(float *y, const float *x, int64_t rows, int64_t cols) {", "has y where it gets x: int launch("),
        (
            "int launch(const float *x, double *out, int64_t r, int64_t c) {",
            "takes out as double *out and gets float* y",
        ),
        ("int launch(const float *x, float *y, int64_t cols, int64_t rows) {", "has cols where it gets rows"),
        ("int launch(const float *given, float *x, int64_t rows, int64_t cols) {", ""),
        ("int launch(const float x[], float *y, int64_t rows, int64_t cols) {", ""),
        ("int launch(const float *x, uint16_t *y, int64_t rows, int64_t cols) {", "takes y as uint16_t *y and gets"),
        (
            "int launch(const double *x, short int *y, int64_t rows, int64_t cols) {",
            "takes x as const double *x and gets",
        ),
        ("int launch(const float *x, short int *y, int64_t rows, int64_t cols) {", ""),
        ("int launch(float x, float *y, int64_t rows, int64_t cols) {", "takes x as float x and gets const float* x"),
        (
            "int launch(const float *x, float *y, int *rows, int *cols) {",
            "takes rows as int *rows and gets int64_t rows",
        ),
    ],
)
def test_a_launcher_that_is_defined_otherwise_than_it_is_called_is_seen_in_its_text(definition: str, said: str):
    found = signature_mismatch(softmax(), definition + " return 0; }", "launch", "c")

    assert said in found if said else not found, found


@pytest.mark.parametrize(
    ("parameters", "cause"),
    [
        ("float x, float *y, int64_t rows, int64_t cols", True),
        ("const float *x, float *y, int *rows, int cols", True),
        ("const float *x, double *y, int64_t rows, int64_t cols", False),
        ("float *y, const float *x, int64_t rows, int64_t cols", False),
    ],
)
def test_a_value_where_an_address_comes_is_the_cause_of_all_else(parameters: str, cause: bool):
    found = signature_mismatch(softmax(), f"int launch({parameters}) {{ return 0; }}", "launch", "c")

    assert found and bool(MISCALLED.search(found)) is cause, found


def test_a_reference_that_does_not_end_is_refused_with_what_would_be_faster():
    late = {"reason": "the reference did not return from its calls within 120 s and was killed"}

    assert refusal_of(softmax(), late).hint == "Declare smaller shapes, or a faster reference."
