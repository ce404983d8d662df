"""Notes of a study of the judge's checks; elsewhere the first check ends the evaluation."""

import pytest

from tests.judge.test_candidates_cpu import SMALL, launcher

QUICK = {"shapes": SMALL, "fixed_shapes": True, "distributions": "declared", "round_ms": 1, "max_rounds": 3}


@pytest.mark.parametrize("study", [False, True])
def test_a_wrong_answer_ends_the_evaluation_but_not_a_study_of_the_checks(court, study):
    body = "static int calls; softmax(x, y, rows, cols); if (++calls > 8) y[0] += 1;"
    verdict = court(launcher(body), study=study, **QUICK).verdict

    assert verdict["verdict"] == ("correct" if study else "incorrect")
    caught = verdict["evidence"].get("caught", [])
    assert bool(caught) is study
    if study:
        assert {"timed"} <= {trial for trial, _, _ in caught}
        assert {verdict for _, verdict, _ in caught} == {"incorrect"}
        assert any("elements are wrong" in reason for _, _, reason in caught)


def test_a_study_of_an_honest_candidate_notes_nothing(court):
    verdict = court("naive.c", study=True, **QUICK).verdict

    assert (verdict["verdict"], verdict["evidence"]["caught"]) == ("correct", [])
