from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from gpu_mcp_server.models._base import ResultModel
from gpu_mcp_server.models.comparison import Comparison, ComparisonRow
from gpu_mcp_server.models.evaluation import Evaluation, ShapeVerdict
from gpu_mcp_server.runtime.result_limits import RESULT_LIMIT, cut_text, json_size, limit_result


class Log(ResultModel):
    text: str
    lines: list[str] = Field(default=[])
    facts: dict[str, str] = Field(default={})

    def summary(self) -> str:
        return "\n".join([self.text, *self.lines, *(f"{k}: {v}" for k, v in self.facts.items())])


def test_a_small_result_is_left_as_it_is():
    assert limit_result(Log(text="x")) == ({"text": "x", "lines": [], "facts": {}}, "x")


def test_a_cut_text_keeps_whole_lines_of_its_head_and_tail():
    text = "".join(f"line {i}\n" for i in range(1000))
    short = cut_text(text, 400)

    assert short.startswith("line 0\n") and short.endswith("line 999\n")
    assert all(line.startswith("line ") or "left out" in line for line in short.splitlines() if line)


def test_several_long_parts_are_cut_together():
    data, text = limit_result(Log(text="a" * 9000, lines=["b" * 9000, "c"], facts={"d": "e" * 9000}))

    assert {note.partition(":")[0] for note in data["shortened"]} == {"text", "lines[0]", "facts.d"}
    assert json_size(data) <= RESULT_LIMIT
    assert len(text) <= RESULT_LIMIT


@given(st.text(max_size=200), st.integers(0, 400), st.lists(st.text(max_size=50), max_size=400), st.integers(0, 40))
def test_no_result_is_over_the_limit_whatever_is_in_it(text: str, times: int, lines: list[str], more: int):
    data, said = limit_result(Log(text=text * times, lines=lines * more))

    assert json_size(data) <= RESULT_LIMIT
    assert len(said) <= RESULT_LIMIT


def test_the_interval_of_a_speed_up_is_that_of_all_shapes_though_some_are_left_out():
    many = [
        ShapeVerdict(
            dims={"n": n}, verdict="correct", speedup=2.0, speedup_low=low, speedup_high=4.0, notes=["x" * 900]
        )
        for n, low in enumerate([1.0] * 10 + [2.0] * 10)
    ]
    ids: dict[str, Any] = {"problem_id": "p", "problem_hash": "h", "attempt_id": "a", "host": "local"}
    whole = Evaluation(status="judged", verdict="correct", language="c", speedup=3.0, shapes=many, **ids)
    data, text = limit_result(whole)

    assert len(data["shapes"]) < 20
    assert "speed-up against the reference: 3 (1.41-4)" in text


def test_candidates_are_counted_though_rows_are_left_out():
    rows = [ComparisonRow(name=f"v{n}", status="judged", reason="y" * 900) for n in range(32)]
    table = Comparison(batch_id="b", problem_id="p", tier="smoke", host="local", rows=rows, complete=True, seconds=1.0)
    data, text = limit_result(table)

    assert len(data["rows"]) < 32
    assert "32 candidates of p" in text
