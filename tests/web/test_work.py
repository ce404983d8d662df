"""Real work for several users over HTTP: jobs, builds, verdicts."""

from collections.abc import AsyncIterator

import pytest

from tests.laboratory import HONEST, PROBLEM, called, refused
from tests.web.site import Served, served


@pytest.fixture(scope="module")
async def site() -> AsyncIterator[Served]:
    async with served() as site:
        yield site


async def test_jobs_are_their_users_and_a_quota_of_one_lets_a_second_wait(site: Served):
    ada = await site.token("ada", quotas={"concurrent_jobs": 1})
    async with site.client(ada) as one, site.client(await site.token("bob")) as other:
        job = await called(one, "run_command", command=["sleep", "60"], detach=True)
        second = await refused(one, "run_command", command=["true"])
        unseen = await refused(other, "job_status", job_id=job["job_id"])
        kept = await refused(other, "cancel_job", job_id=job["job_id"])
        theirs = await called(other, "run_command", command=["echo", "hello"])
        ended = await called(one, "cancel_job", job_id=job["job_id"])
        freed = await called(one, "run_command", command=["true"])

    assert "concurrent_jobs" in second and job["job_id"] in second
    assert unseen == kept and "There is no job" in unseen
    assert (theirs["stdout"], ended["status"], freed["status"]) == ("hello\n", "cancelled", "ok")


async def test_two_users_judge_the_same_kernel_each_with_an_attempt_and_files_of_their_own(site: Served):
    attempts: list[str] = []
    for name in ("ann", "ben"):
        async with site.client(await site.token(name)) as client:
            problem = await called(client, "register_problem", **PROBLEM)
            asked = {"problem_id": problem["problem_id"], "timing": {"tier": "correctness"}}
            verdict = await called(client, "evaluate_kernel", source=HONEST, language="c", **asked)
            assert verdict["verdict"] == "correct", verdict
            attempts.append(verdict["attempt_id"])
            listed = await called(client, "list_attempts", view="recent", problem_id=problem["problem_id"])
            evidence = await called(client, "list_attempts", attempt_id=verdict["attempt_id"])
            source = await called(client, "read_artifact", artifact_id=evidence["attempts"][0]["source_artifact_id"])
            built = await called(client, "compile_kernel", source=HONEST, language="c")
            binary = await called(client, "read_artifact", artifact_id=built["artifact_id"])

        assert [a["attempt_id"] for a in listed["attempts"]] == attempts[-1:]
        assert "tanhf" in str(source) and binary
    assert len(set(attempts)) == 2
