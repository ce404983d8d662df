"""Lists that are searched, filtered and sorted; two attempts side by side; users; hosts without GPUs."""

import re

import pytest

from gpu_mcp_server.hostd.protocol import JobSpec, ProcessSpec
from gpu_mcp_server.runtime.current_user import acting_as
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.jobs.job_table import command_of
from gpu_mcp_server.services.status.listings import MAX_COUNTED, ListRequest
from tests.web.dashboard.conftest import LONG_NAME, Dashboard
from tests.web.dashboard.content import HOSTILE, OUTCOMES
from tests.web.dashboard.test_dashboard import visitor

pytestmark = pytest.mark.anyio
SPEEDUP = re.compile(r'<td data-label="Speed-up" class="n"><b>\u00d7([\d.]+)</b>')


async def test_jobs_have_command_user_and_age_and_are_found_by_them(dashboard: Dashboard):
    with acting_as(dashboard.ada):
        failed = await dashboard.lab.commands.run(["sh", "-c", "exit 3"], timeout_s=60, wait_s=60)
    with acting_as(dashboard.bo):
        foreign = await dashboard.lab.commands.run(["true", "secret-argument"], timeout_s=60, wait_s=60)
    async with visitor(dashboard, "ada") as http:
        everything = (await http.get("/jobs")).text
        assert (
            "<code>sh -c &#39;exit 3&#39;</code>" in everything
            and '<td data-label="User" class="u">ada</td>' in everything
        )
        assert re.search(r'<td data-label="Age" class="n">\d+ s ago</td>', everything)
        assert foreign.job_id not in everything and "secret-argument" not in everything
        for query, found in (
            ("?q=EXIT 3", True), ("?q=exit nothing", False), (f"?q={failed.job_id}", True), ("?state=failed", True),
            ("?state=ok", False), ("?user=ada&host=local", True), ("?user=bo", False), ("?purpose=run&sort=oldest", True),
            ("?sort=';DROP TABLE jobs", True), ("?page=9999999999", True), ("?page=3", False), ("?q=%00", True),
            ("?q=%25", False), ("?state=%27%20OR%201", False),
        ):  # fmt: skip
            text = (await http.get(f"/jobs{query}")).text
            assert (f'<tr id="{failed.job_id}">' in text) == found, query
        assert (await http.get("/jobs?page=3")).text.count("No job matches.") == 1
        live = (await http.get("/jobs?state=failed", headers={"HX-Request": "true"})).text
        assert failed.job_id in live and '<form class="filters"' not in live and "state=failed&amp;sort=host" in live
        page = (await http.get(f"/jobs/{failed.job_id}")).text
        assert '<code id="command">sh -c &#39;exit 3&#39;</code>' in page
        assert (await http.get("/jobs?q=secret-argument")).text.count("No job matches.") == 1


async def test_attempts_are_filtered_and_sorted_with_intervals_in_columns(dashboard: Dashboard):
    problem = dashboard.handles["problem"]
    async with visitor(dashboard, "ada") as http:
        best = (await http.get(f"/attempts?problem={problem}&sort=speed-up")).text
        speedups = [float(each) for each in SPEEDUP.findall(best)]
        assert speedups == sorted(speedups, reverse=True) and speedups[0] == 3.18 and len(speedups) == 12
        assert "2.99\u20133.34" in best and "19.2 \u00b5s" in best and f'name="problem" value="{problem}"' in best
        cheats = (await http.get("/attempts?outcome=cheat")).text
        assert "keeps the last answer" not in cheats, "the reason goes before the note"
        assert cheats.count('name="attempt"') == sum(said == "cheat" for _, said, *_ in OUTCOMES)
        assert "1 attempt found" in re.sub(r"\s+", " ", cheats)
        faster = (await http.get("/attempts?q=cp.async THREE")).text
        assert dashboard.handles["best"] in faster and dashboard.handles["plain"] not in faster
        assert "No attempt matches." in (await http.get("/attempts?q=" + dashboard.handles["hidden"])).text
        assert "No attempt matches." in (await http.get("/attempts?user=bo")).text


async def test_attempts_have_trust_shape_and_source_and_sort_by_trust_first(dashboard: Dashboard):
    experience = dashboard.lab.store.experience
    with acting_as(dashboard.ada):
        for us, evidence in ((90.0, {"confirmed_by": "itself"}), (10.0, {"unconfirmable": "the host is busy"})):
            attempt = await experience.start("evaluate", problem_id=dashboard.handles["hostile"], device="cpu")
            told = {"ranked_by": "time", "time_range_us": [us * 0.9, us * 1.1], **evidence}
            await experience.finish(attempt, status="judged", verdict="correct", median_us=us, evidence=told)
        kept = await experience.get(dashboard.handles["best"])
    async with visitor(dashboard, "ada") as http:
        page = (await http.get(f"/attempts?problem={dashboard.handles['problem']}&sort=speed-up")).text
        rows = page.split("<tr>")[2:]
        best = next(row for row in rows if dashboard.handles["best"] in row)
        assert '<td data-label="Trust" class="u">confirmed</td>' in best
        assert "rows=4096,cols=4096" in best and f">{kept.source_artifact_id}</a>" in best
        assert "unconfirmable: &lt;script&gt;" in page
        assert sum(">provisional</td>" in row for row in rows) == 8
        wrong = next(row for row in rows if dashboard.handles["wrong"] in row)
        assert '<td data-label="Trust" class="u none"></td>' in wrong, "what has no time has no trust"
        timed = (await http.get(f"/attempts?problem={dashboard.handles['hostile']}&sort=speed-up")).text
        assert timed.index("81.0\u201399.0 \u00b5s") < timed.index("9.00\u201311.0 \u00b5s"), (
            "a doubted time is not the best"
        )
        assert timed.index(">confirmed<") < timed.index("unconfirmable: the host is busy")
        problems = (await http.get("/problems")).text
        assert "<b>90.0 \u00b5s</b> on cpu" in problems and "<b>10.0" not in problems


async def test_problems_are_searched_and_sorted(dashboard: Dashboard):
    async with visitor(dashboard, "ada") as http:
        named = (await http.get("/problems?sort=name")).text
        assert named.index("&lt;script&gt;document") < named.index("softmax over rows</a>")
        found = (await http.get("/problems?q=Softmax ROWS")).text
        assert dashboard.handles["problem"] in found and dashboard.handles["hostile"] not in found
        assert "\u00d73.18" in found and "No problem matches." in (await http.get("/problems?q=secret")).text


async def test_two_attempts_stand_side_by_side_and_what_cannot_be_compared_is_said(dashboard: Dashboard):
    handles = dashboard.handles
    async with visitor(dashboard, "ada") as http:
        page = (await http.get(f"/compare?attempt={handles['plain']}&attempt={handles['best']}")).text
        assert "cannot be compared" not in page and "\u00d71.2" in page and "19.0\u201319.4 \u00b5s" in page
        assert (
            "// One warp a row, four values at a time." in page
            and "// One warp a row; a row is read three times." in page
        )
        assert 'class="del">' in page and "&lt;script&gt;" in page and HOSTILE not in page
        assert "bound by dram at 65 %" in page and f"No profile of {handles['plain']}" in page
        other = re.findall(r'name="attempt" value="(a-\w+)"', (await http.get("/attempts?q=A100")).text)[0]
        page = (await http.get(f"/compare?attempt={other}&attempt={handles['best']}")).text
        assert "Their times cannot be compared: device, driver differ." in page
        assert "Compare two attempts" in (await http.get(f"/compare?attempt={handles['best']}")).text
        assert (await http.get(f"/compare?attempt={handles['hidden']}&attempt={handles['best']}")).status_code == 404
        assert (await http.get("/compare?attempt=a-1&attempt=a-2&attempt=a-3")).status_code == 400


async def test_users_are_shown_to_an_admin_and_otherwise_each_to_themselves(dashboard: Dashboard):
    async with visitor(dashboard, "ada") as ada, visitor(dashboard, "admin") as admin:
        own, everybody = (await ada.get("/users")).text, (await admin.get("/users")).text
        assert "/jobs?user=ada" in own and "/jobs?user=bo" not in own and LONG_NAME not in own and "of 2 h" in own
        assert "/jobs?user=ada" in everybody and "/jobs?user=bo" in everybody and everybody.count(LONG_NAME) > 2
        (row,) = re.findall(r'<a href="/jobs\?user=ada">.*?</tr>', everybody, re.DOTALL)
        assert "kernels" in row and ">2</td>" in row, "two tokens; sessions are none"


async def test_a_host_without_gpus_shows_processors_memory_and_its_jobs(dashboard: Dashboard):
    with acting_as(dashboard.ada):
        job = (await dashboard.lab.commands.run(["sleep", "300"], host="cpu", timeout_s=300, wait_s=0)).job_id
    async with visitor(dashboard, "ada") as ada, visitor(dashboard, "bo") as bo:
        page = (await ada.get("/processors")).text
        while "Host cpu" not in page or job not in page or "0 unfinished" in page:
            page = (await ada.get("/processors")).text
        assert "Host local" not in page, "it has GPUs"
        assert "cores, mean of a minute" in page and re.search(r"[\d.]+ [MG]iB of [\d.]+ GiB", page)
        assert "<code>sleep 300</code>" in page
        foreign = (await bo.get("/processors")).text
        assert job not in foreign and "1 unfinished job of other users." in foreign
        await ada.post(f"/jobs/{job}/cancel")


async def test_more_rows_than_are_counted_are_said_to_be_more_and_are_reached_page_by_page(dashboard: Dashboard):
    lists, db = dashboard.lab.status.lists, dashboard.lab.store.db
    with acting_as(dashboard.bo):
        await db.execute_all(
            [
                ("INSERT INTO attempts (attempt_id, kind, created_at, status) VALUES (?, 'compile', ?, 'many')", (f"a-many{n}", "2026-01-01T00:00:00+00:00"))
                for n in range(MAX_COUNTED + 7)
            ]
        )  # fmt: skip
        await db.execute_all([("INSERT INTO owners VALUES (?, 'bo')", (f"a-many{n}",)) for n in range(MAX_COUNTED + 7)])
        chosen = {"outcome": "many"}
        rows, matching = await lists.attempts(ListRequest(chosen=chosen, limit=50))
        assert (len(rows), matching) == (50, MAX_COUNTED + 1)
        rows, matching = await lists.attempts(ListRequest(chosen=chosen, skip=MAX_COUNTED, limit=50))
        assert (len(rows), matching) == (7, MAX_COUNTED + 7)
        rows, matching = await lists.attempts(ListRequest(chosen=chosen, skip=2 * MAX_COUNTED, limit=50))
        assert (rows, matching) == ([], 0)
    async with visitor(dashboard, "bo") as http:
        page = (await http.get("/attempts?outcome=many&page=1")).text
        assert "51\u2013100 of more than 1,000 attempts found" in page and "page=2" in page
        assert "/attempts?outcome=many&amp;page=2" in page


async def test_a_job_has_the_command_of_its_first_process_and_none_where_the_program_is_the_servers(
    dashboard: Dashboard,
):
    with acting_as(dashboard.ada):
        source = CandidateSource("int launch(void) { return 0; }", "c", "kernel.c")
        made = await dashboard.lab.builds.compiler.compile(source)
        rows, _ = await dashboard.lab.status.lists.jobs(ListRequest(chosen={"purpose": "compile"}))
    assert made.status == "ok" and made.attempt_id
    assert rows[0].command[0].endswith("gcc") and "kernel.c" in rows[0].command
    judge = JobSpec(id="j-1", purpose="judge", processes=(ProcessSpec(("{python}", "secret"), program="print()"),))
    assert command_of(judge) == {} and command_of(judge._replace(processes=())) == {}
    assert command_of(judge._replace(purpose="reserve", processes=(ProcessSpec(("reserve",)),))) == {}
    many = judge._replace(processes=(ProcessSpec(("sh", *["x" * 1000] * 99)),))
    assert len(command_of(many)["command"]) == 50 and max(map(len, command_of(many)["command"])) == 200
