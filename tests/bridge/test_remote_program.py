"""Mode program at a team's server: the folder and the agent are the laptop's, the program runs at the server."""

import json
from pathlib import Path

import pytest

from gpu_mcp_server.recipes.run.plan_loader import plan_of
from gpu_mcp_server.services.lab import Lab
from tests.bridge.test_remote_runs import runs_of
from tests.recipes.modes.test_program_mode import plan_values, write_program
from tests.services.programs.test_problem_capture import PYTHON, needs_torch
from tests.web.site import lab_of, served

pytestmark = pytest.mark.timeout(1500)


@needs_torch
async def test_the_program_of_a_laptop_becomes_faster_at_a_server(own_lab: Lab, tmp_path: Path):
    write_program(tmp_path)
    (tmp_path / "loop" / "__pycache__").mkdir()
    (tmp_path / "loop" / "__pycache__" / "bench.cpython-311.pyc").write_bytes(b"x")
    told: list[str] = []

    async def tell(message: str) -> None:
        told.append(message)

    async with served(hosts={"local": {"kind": "local", "judge_python": PYTHON}}) as site:
        token = await site.token("ada")
        async with runs_of(site.url, token, own_lab) as runs:
            run_id = await runs.begin(plan_of(plan_values(150), tmp_path))
            state = await runs.go(run_id, tell)
            journal = await runs.read_journal(run_id)
        there = await lab_of(site)
        (plan,) = [json.loads(p.read_text()) for p in there.settings.data_dir.glob("recipes/*/plan.json")]
        done = {each["step"]: each for each in journal if each["event"] == "done"}
        copy = str(done["apply-001"]["copy"])
        files = [f.path for f in (await there.store.workspaces.listing(plan["problem"])).files]
        owners = await there.store.db.fetch_all("SELECT owner FROM owners WHERE handle = ?", (copy,))
    jobs = await own_lab.store.db.fetch_all("SELECT context FROM jobs")

    assert state.stopped == "faster" and "of the whole: the program became faster" in state.why, state.summary()
    assert state.spent.agent_calls == 5 and any(line.startswith("measure-002: ") for line in told)
    assert sorted(files) == ["bench.py", "recurrence.py"] and [row["owner"] for row in owners] == ["ada"]
    assert str(tmp_path) not in json.dumps(plan), "no path of the laptop"
    assert jobs and all("recipe_step" in row["context"] for row in jobs), "the laptop called the agent, and ran nothing"


async def test_a_program_of_a_path_of_the_server_is_refused(tmp_path: Path):
    async with served() as site:
        token = await site.token("ada")
        plan = plan_of(plan_values(1), tmp_path).model_dump(mode="json")
        for problem in ("/etc", "workspace:w-1/../../etc", "p-1"):
            answer = await site.ask("PUT", "/recipes/r-one", token, json={"plan": {**plan, "problem": problem}})
            assert answer.status_code == 400 and "no problem of this server" in answer.text, problem
