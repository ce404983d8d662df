"""The dashboard over a real server: what it shows to whom, what hostile text does, what can be done in Chromium."""

import json
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

from gpu_mcp_server.runtime.current_user import acting_as
from gpu_mcp_server.web.authentication import SESSION_COOKIE
from tests.web.dashboard.conftest import Dashboard
from tests.web.dashboard.content import HOSTILE, TURNED
from tests.web.site import served

pytestmark = pytest.mark.anyio
CHROMIUM = shutil.which("chromium")
in_browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")
SHOTS = os.environ.get("DASHBOARD_SHOTS")
"""Folder for pictures of every page, for whoever wants to look at them."""
WIDTHS = {"desk": 1280, "phone": 390}


def pages(handles: dict[str, str]) -> dict[str, str]:
    """Return every page by name."""
    problem = f"/problems/{handles['problem']}"
    return {
        "pool": "/", "problems": "/problems", "problem": problem, "board": f"{problem}?board=2", "hostile": f"/problems/{handles['hostile']}",
        "lineage": f"{problem}/lineage", "attempt": f"/attempts/{handles['best']}", "broken": f"/attempts/{handles['broken']}",
        "wrong": f"/attempts/{handles['wrong']}",
        "runs": "/runs", "run": f"/runs/{handles['run']}", "jobs": "/jobs", "usage": "/usage", "hosts": "/hosts",
        "job": f"/jobs/{handles['job']}", "users": "/users", "processors": "/processors", "attempts": "/attempts",
        "search": "/attempts?" + urlencode({"q": HOSTILE + TURNED, "outcome": HOSTILE, "sort": HOSTILE, "problem": HOSTILE}),
        "compare": f"/compare?attempt={handles['plain']}&attempt={handles['best']}",
        "different": f"/compare?attempt={handles['wrong']}&attempt={handles['profile']}", "compare-form": "/compare",
    }  # fmt: skip


class Elements(HTMLParser):
    """Collects elements with the names of their attributes, as a browser would make them of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, list[str]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, [name for name, _ in attrs]))


@asynccontextmanager
async def visitor(dashboard: Dashboard, name: str) -> AsyncIterator[httpx2.AsyncClient]:
    """Sign in without a browser."""
    async with httpx2.AsyncClient(base_url=dashboard.url, timeout=60, headers={"Accept": "text/html"}) as http:
        answer = await http.post("/login", data={"token": dashboard.tokens[name]})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        yield http


async def started(dashboard: Dashboard) -> str:
    """Start a job of ada's that runs until it is ended."""
    with acting_as(dashboard.ada):
        return (await dashboard.lab.commands.run(["sleep", "300"], timeout_s=300, wait_s=0)).job_id


async def test_a_token_opens_a_session_that_scripts_cannot_read_and_that_ends(dashboard: Dashboard):
    async with httpx2.AsyncClient(base_url=dashboard.url, headers={"Accept": "text/html"}) as http:
        assert (await http.get("/problems")).headers["location"] == "/login"
        refused = await http.post("/login", data={"token": "gpumcp_000000000000_" + "x" * 43})
        assert refused.status_code == 401 and "not known here" in refused.text and not http.cookies
        assert (await http.post("/login", data={"token": HOSTILE * 1000})).status_code == 401

        answer = await http.post("/login", data={"token": dashboard.tokens["ada"]})
        said = answer.headers["set-cookie"].lower()
        assert "httponly" in said and "samesite=strict" in said and dashboard.tokens["ada"].lower() not in said
        assert (await http.get("/")).status_code == 200
        session = http.cookies[SESSION_COOKIE]
        assert (await http.post("/logout")).headers["location"] == "/login" and SESSION_COOKIE not in http.cookies
        again = await http.get("/", headers={"Cookie": f"{SESSION_COOKIE}={session}"})
        assert again.headers["location"] == "/login"
        gone = await http.get("/login", headers={"HX-Request": "true"})
        assert gone.headers["hx-redirect"] == "/login", "a live part does not show the form inside the page"


async def test_where_nobody_needs_a_token_nobody_signs_in_and_other_sites_change_nothing():
    async with served(tokens=False) as site:
        answer = await site.ask("GET", "/problems")
        assert answer.status_code == 200 and "Sign out" not in answer.text and "No problem is registered" in answer.text
        assert (await site.ask("GET", "/login")).headers["location"] == "/"
        foreign = await site.ask("POST", "/jobs/j-1/cancel", headers={"Sec-Fetch-Site": "same-site"})
        assert foreign.status_code == 403
        assert (await site.ask("POST", "/jobs/j-1/cancel")).status_code == 404


async def test_hostile_text_is_text_on_every_page_and_nothing_is_inline(dashboard: Dashboard):
    async with visitor(dashboard, "ada") as http:
        for path in pages(dashboard.handles).values():
            answer = await http.get(path)
            assert answer.status_code == 200, (path, answer.text)
            policy = answer.headers["content-security-policy"]
            assert "unsafe" not in policy and "default-src 'none'" in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            text = answer.text
            assert HOSTILE not in text and "<img src=x" not in text, path
            assert "\u202e" not in text and "\x1b" not in text and "\x00" not in text, path
            elements = Elements(text)
            assert all("src" in names for tag, names in elements.found if tag == "script"), path
            assert not [n for _, names in elements.found for n in names if n == "style" or n.startswith("on")], path
            assert not re.search(r"\b(?:[Ww]hoever|[Nn]obody|[Ss]omebody)\b", text), path
        shown = (await http.get(f"/problems/{dashboard.handles['hostile']}")).text
        assert "&lt;script&gt;" in shown and "\\u202e" in shown and "\\x1b" in shown
        broken = (await http.get(f"/attempts/{dashboard.handles['broken']}")).text
        assert 'href="#L7">kernel.cu:7</a>' in broken and 'id="L7"' in broken and "Is its header included?" in broken
        source = await http.get(f"/attempts/{dashboard.handles['wrong']}/source")
        assert (
            source.headers["content-type"].startswith("text/plain")
            and "attachment" in source.headers["content-disposition"]
        )


async def test_no_character_of_others_steers_in_the_data_of_plots_and_in_pictures(dashboard: Dashboard):
    problem = f"/problems/{dashboard.handles['problem']}"
    async with visitor(dashboard, "ada") as http:
        for path, part in (
            (f"{problem}/course.json", "img src=x"),
            (f"/attempts/{dashboard.handles['profile']}/roofline.json", "softmax(float const*"),
            (f"{problem}/lineage", "&lt;img src=x"),
            (f"/runs/{dashboard.handles['run']}", "&lt;img src=x"),
            (f"/attempts/{dashboard.handles['wrong']}/source", "<img src=x"),
        ):
            text = (await http.get(path)).text
            texts = text + repr(json.loads(text)) if path.endswith("json") else text
            assert not set(texts) & set(TURNED) - set("}txet{ [31m"), path
            assert part in text and "\\u202e}txet{" in texts, path


async def test_a_login_ends_the_session_that_there_was_whether_it_succeeds_or_fails(dashboard: Dashboard):
    async def is_signed_in(session: str) -> bool:
        async with httpx2.AsyncClient(base_url=dashboard.url, headers={"Accept": "text/html"}) as http:
            answer = await http.get("/problems", headers={"Cookie": f"{SESSION_COOKIE}={session}"})
        return answer.status_code == 200

    async def posted(session: str, token: str, **headers: str) -> httpx2.Response:
        async with httpx2.AsyncClient(base_url=dashboard.url) as http:
            said = {"Cookie": f"{SESSION_COOKIE}={session}", **headers}
            return await http.post("/login", data={"token": token}, headers=said)

    async with visitor(dashboard, "ada") as http, visitor(dashboard, "bo") as other:
        first, fixed = http.cookies[SESSION_COOKIE], other.cookies[SESSION_COOKIE]
    again = await posted(first, dashboard.tokens["ada"])
    second = again.cookies[SESSION_COOKIE]
    assert again.status_code == 303 and second != first
    assert (await is_signed_in(first), await is_signed_in(second)) == (False, True)

    wrong = await posted(second, "gpumcp_000000000000_" + "x" * 43)
    assert wrong.status_code == 401 and not await is_signed_in(second)
    assert f'{SESSION_COOKIE}=""' in wrong.headers["set-cookie"], "the browser forgets it too"

    given = await posted(fixed, dashboard.tokens["ada"])
    assert given.cookies[SESSION_COOKIE] != fixed and not await is_signed_in(fixed)
    own = given.cookies[SESSION_COOKIE]
    assert (await posted(own, own)).status_code == 401, "a session is no token to begin another with"
    assert (await posted("x; y", dashboard.tokens["ada"])).status_code == 303


async def test_another_site_cannot_sign_somebody_in_or_out(dashboard: Dashboard):
    async with visitor(dashboard, "ada") as http:
        for path in ("/login", "/logout"):
            foreign = await http.post(path, data={"token": "x"}, headers={"Sec-Fetch-Site": "cross-site"})
            assert foreign.status_code == 403 and "another site" in foreign.text
        assert (await http.get("/problems")).status_code == 200


async def test_a_name_of_nothing_is_not_found_whatever_it_is(dashboard: Dashboard):
    async with visitor(dashboard, "ada") as http:
        for name in ("..%2f..%2fetc", "%00", "a'--", "%ff%fe", "x" * 3000, "%E2%80%AE", "r-..", "%0d%0aSet-Cookie:x=1"):
            for path in ("problems", "attempts", "runs", "jobs"):
                answer = await http.get(f"/{path}/{name}")
                assert answer.status_code == 404 and "set-cookie" not in answer.headers, (path, name)
            assert (await http.post(f"/jobs/{name}/cancel")).status_code == 404
            problem = f"/problems/{dashboard.handles['problem']}?board={name}"
            assert (await http.get(problem)).status_code == 200


async def test_rankings_are_apart_by_device_and_driver(dashboard: Dashboard):
    async with visitor(dashboard, "ada") as http:
        at = f"/problems/{dashboard.handles['problem']}"
        found = [(await http.get(f"{at}/course.json?board={n}")).json()["points"] for n in range(3)]
        assert [len(points) for points in found] == [12, 6, 1]
        assert [points[-1]["best"] for points in found] == [3.18, 1.94, 0.62]
        assert [p["outcome"] for p in found[0]][:4] == ["correct", "correct", "compile_failed", "incorrect"]
        third = (await http.get(f"{at}?board=2")).text
        assert "\u00d70.62" in third and third.count("570.124.06") == 2
        assert (await http.get(f"{at}?board=3")).status_code == 404
        plain = (await http.get(f"/attempts/{dashboard.handles['plain']}/roofline.json")).json()
        assert [k["kernel"] for k in plain["kernels"]] == ["rows 4096, cols 1000"], "the one that the problem declares"
        assert plain["kernels"][0]["levels"][0]["intensity_flop_b"] == pytest.approx(5 / 8)
        wrong = (await http.get(f"/attempts/{dashboard.handles['wrong']}")).text
        assert "1,024 of 4,096,000 elements looked at are wrong" in wrong and "row 23, column 47: 75.0% wrong" in wrong
        roofs = (await http.get(f"/attempts/{dashboard.handles['profile']}/roofline.json")).json()
        assert [(r["level"], r["gb_s"], r["peak_tflop_s"]) for r in roofs["roofs"]] == [
            ("dram", 4800.0, 60.3),
            ("l2", 9100.0, 60.3),
        ]


async def test_a_visitor_sees_and_ends_only_what_the_services_let_them(dashboard: Dashboard):
    job = await started(dashboard)
    async with visitor(dashboard, "ada") as ada, visitor(dashboard, "bo") as bo, visitor(dashboard, "reader") as reader:
        assert (await ada.get(f"/attempts/{dashboard.handles['hidden']}")).status_code == 404
        assert "secret of bo" not in (await ada.get("/problems")).text
        for path in [*pages(dashboard.handles).values(), f"/jobs/{job}"]:
            status = (await bo.get(path)).status_code
            assert status == (404 if path.count("/") > 1 or "attempt=" in path else 200), path
        assert "secret of bo" in (await bo.get("/problems")).text and job not in (await bo.get("/jobs")).text

        assert (await bo.post(f"/jobs/{job}/cancel")).status_code == 404
        assert "only" not in (await reader.get("/jobs")).text and "Cancel" not in (await reader.get("/jobs")).text
        assert (await reader.post(f"/jobs/{job}/cancel")).status_code == 403
        elsewhere = await ada.post(f"/jobs/{job}/cancel", headers={"Sec-Fetch-Site": "cross-site"})
        assert elsewhere.status_code == 403 and "another site" in elsewhere.text
        assert (await ada.post(f"/jobs/{job}/cancel", headers={"Origin": "http://localhost:1"})).status_code == 403
        assert (await ada.post(f"/reservations/{job}/release")).status_code == 400
        assert (await ada.get(f"/jobs/{job}/cancel")).status_code == 405

        assert (await ada.post(f"/jobs/{job}/cancel")).headers["location"] == f"/jobs/{job}"
        assert "cancelled" in (await ada.get(f"/jobs/{job}")).text
        assert "of 2 h" in (await ada.get("/usage")).text
    await dashboard.team.audit.write()
    (last,) = [e for e in await dashboard.team.audit.recent() if e.handle == job and e.action.startswith("dashboard")]
    assert (last.user, last.action, last.address) == ("ada", "dashboard cancel", "127.0.0.1")


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        expect.set_options(timeout=30_000)  # of a machine that others use too
        found = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        await found.close()


async def check_width(page: Page, name: str) -> None:
    """Check that a page does not scroll sideways, and that nothing in it is cut off."""
    wider = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wider <= 0, f"{name} is {wider} px too wide"
    cut = await page.evaluate(
        "[...document.querySelectorAll('.card')].filter((c) => c.scrollWidth > c.clientWidth + 1).map((c) => c.innerText)"
    )
    assert not cut, f"{name}: what does not fit is cut off: {cut}"


@asynccontextmanager
async def looking(browser: Browser, dashboard: Dashboard, name: str = "ada", **more: Any) -> AsyncIterator[Page]:
    """Sign in by keyboard in a window of its own; anything on the console is a failure."""
    context = await browser.new_context(**more)
    page = await context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("response", lambda answer: said.append(answer.url) if answer.status >= 400 else None)
    await page.goto(dashboard.url)
    await expect(page.get_by_label("Access token")).to_be_focused()
    await check_width(page, "login")
    await page.keyboard.type(dashboard.tokens[name])
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Pool")).to_be_visible()
    yield page
    assert said == []
    await context.close()


@in_browser
@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
async def test_every_page_works_in_chromium(browser: Browser, dashboard: Dashboard, width: str, colours: Any):
    view: Any = {"width": WIDTHS[width], "height": 844}
    async with looking(browser, dashboard, viewport=view, color_scheme=colours) as page:
        for name, path in pages(dashboard.handles).items():
            await page.goto(dashboard.url + path)
            for plot in await page.locator("[data-plot]").all():
                await expect(plot).to_have_attribute("data-ready", "yes")
                await expect(plot.locator("canvas")).to_be_visible()
            await check_width(page, name)
            assert await page.title() != "owned", name
            if SHOTS:
                await page.screenshot(path=Path(SHOTS) / f"{width}-{colours}-{name}.png", full_page=True)
        paper = await page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", paper)[:3])) > 382) == (colours == "light"), paper
        await page.get_by_role("button", name="Colours").click()
        await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        await page.reload()
        await expect(page.locator("html")).to_have_attribute("data-theme", "dark")


@in_browser
async def test_a_reservation_comes_and_is_released_while_one_looks_by_keyboard_alone(
    browser: Browser, dashboard: Dashboard
):
    async with looking(browser, dashboard) as page:
        await page.keyboard.press("Tab")
        await expect(page.get_by_text("To the content")).to_be_focused()
        await expect(page.get_by_role("region", name="Host mute")).to_contain_text("not reachable")
        with acting_as(dashboard.ada):
            lease = await dashboard.lab.jobs.pool.reserve(2, keep_s=600)
        row = page.locator(f"#r-{lease.lease_id}")
        await expect(row).to_be_visible()
        await expect(page.get_by_text("3 GPUs · 2 held · 1 free")).to_be_visible()
        await expect(page.locator("#GPU-5a1e, #GPU-77c0, #GPU-0b9d").filter(has_text="ada")).to_have_count(2)

        await row.locator("summary").focus()
        await page.keyboard.press("Enter")
        await page.keyboard.press("Tab")
        await expect(row.get_by_role("button", name=f"Release {lease.lease_id}")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("status").filter(has_text="The reservation is ended.")).to_be_visible()
        await expect(page.get_by_text("Nothing is reserved.")).to_be_visible()


@in_browser
async def test_a_job_is_cancelled_with_the_mouse_and_the_page_says_how_it_ended(browser: Browser, dashboard: Dashboard):
    job = await started(dashboard)
    async with looking(browser, dashboard, viewport={"width": 390, "height": 844}) as page:
        await page.get_by_role("link", name="Jobs").click()
        row = page.locator(f"#{job}")
        await expect(row).to_contain_text("running")
        await row.get_by_text("Cancel…").click()
        await row.get_by_role("button", name=f"Cancel {job}").click()
        await expect(page).to_have_url(f"{dashboard.url}/jobs/{job}")
        await expect(page.locator(".head .tag")).to_have_text("cancelled")


@in_browser
async def test_the_plot_is_walked_with_arrow_keys_and_opens_an_attempt(browser: Browser, dashboard: Dashboard):
    async with looking(browser, dashboard) as page:
        await page.goto(f"{dashboard.url}/problems/{dashboard.handles['problem']}")
        plot = page.locator("[data-plot=course]")
        await expect(plot).to_have_attribute("data-ready", "yes")
        await plot.focus()
        await page.keyboard.press("End")
        await expect(plot.locator(".readout")).to_contain_text("#12 incorrect, best so far \u00d73.18")
        await page.keyboard.press("ArrowLeft")
        await expect(plot.locator(".readout")).to_contain_text("#11 correct \u00d73.18")
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(f"{dashboard.url}/attempts/{dashboard.handles['best']}")


@in_browser
async def test_a_page_says_when_the_server_is_silent_goes_on_when_it_is_back_and_leaves_with_its_session(
    browser: Browser, dashboard: Dashboard
):
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(dashboard.url)
    await page.get_by_label("Access token").fill(dashboard.tokens["bo"])
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Pool")).to_be_visible()
    stale = page.get_by_text("The server does not answer")
    await expect(stale).to_be_hidden()
    await page.route("**/*", lambda route: route.abort())
    await expect(stale).to_be_visible()
    await page.unroute("**/*")
    await expect(stale).to_be_hidden()
    (session,) = [
        t
        for t in await dashboard.team.tokens.list(sessions=True)
        if t.user == "bo" and t.state == "active" and t.expires_at
    ][-1:]
    await dashboard.team.tokens.revoke(session.token_id)
    await expect(page).to_have_url(f"{dashboard.url}/login")
    await context.close()


@in_browser
@pytest.mark.parametrize("width", WIDTHS.values())
async def test_long_names_of_users_and_a_page_that_is_refused_do_not_scroll_sideways(
    browser: Browser, dashboard: Dashboard, width: int
):
    context = await browser.new_context(viewport={"width": width, "height": 844})
    page = await context.new_page()
    await page.request.post(f"{dashboard.url}/login", form={"token": dashboard.tokens["admin"]})
    for path in ("/", "/users", "/jobs", "/attempts", "/usage", "/problems?q=" + "x" * 200, "/attempts/" + "a" * 300):
        await page.goto(dashboard.url + path)
        await check_width(page, path)
    await context.close()


OVERLAPS = """[...document.querySelectorAll('svg.lanes text')].map((t) => [t.textContent, t.getBoundingClientRect()])
  .flatMap(([text, a], n, all) => all.slice(n + 1).filter(([, b]) => a.left < b.right - 1 && b.left < a.right - 1
    && a.top < b.bottom - 1 && b.top < a.bottom - 1).map(([other]) => text + ' | ' + other))"""
"""Texts of a run's picture that lie upon each other."""
SMALLEST = "Math.min(...[...document.querySelectorAll('svg.lanes text')].map((t) => t.getBoundingClientRect().height))"


@in_browser
@pytest.mark.parametrize("width", [1280, 800, 390])
async def test_the_picture_of_a_run_is_legible_at_every_width(browser: Browser, dashboard: Dashboard, width: int):
    async with looking(browser, dashboard, viewport={"width": width, "height": 844}) as page:
        await page.goto(f"{dashboard.url}/runs/{dashboard.handles['run']}")
        await check_width(page, f"a run at {width}")
        assert await page.evaluate(OVERLAPS) == []
        assert await page.evaluate(SMALLEST) >= 10, "pixels from the top of a line of text to its bottom"


@in_browser
async def test_what_is_shown_is_copied_as_it_is_shown(browser: Browser, dashboard: Dashboard):
    async with looking(browser, dashboard, permissions=["clipboard-read", "clipboard-write"]) as page:
        await page.goto(f"{dashboard.url}/attempts/{dashboard.handles['best']}")
        await page.get_by_role("button", name="Copy the source").click()
        await expect(page.get_by_role("button", name="Copied the source")).to_be_visible()
        copied = await page.evaluate("navigator.clipboard.readText()")
        assert copied.startswith("#include <cuda_runtime.h>\n#include <math_constants.h>\n\n") and copied.endswith(
            "}\n"
        )
        await page.goto(f"{dashboard.url}/jobs/{dashboard.handles['job']}")
        await page.get_by_role("button", name="Copy the command").click()
        await expect(page.get_by_role("button", name="Copied the command")).to_be_visible()
        assert "echo '<script>" in await page.evaluate("navigator.clipboard.readText()")


@in_browser
async def test_a_log_follows_its_end_until_it_is_scrolled_up(browser: Browser, dashboard: Dashboard):
    program = "i=0; while true; do i=$((i + 1)); echo line $i; [ $i -gt 200 ] && sleep 0.2; done"
    with acting_as(dashboard.ada):
        job = (await dashboard.lab.commands.run(["sh", "-c", program], timeout_s=300, wait_s=1)).job_id
    left = "document.getElementById('stdout').scrollHeight - document.getElementById('stdout').scrollTop - document.getElementById('stdout').clientHeight"
    async with looking(browser, dashboard) as page:
        await page.goto(f"{dashboard.url}/jobs/{job}")
        log = page.locator("#stdout")
        first = await log.locator(".l").count()
        assert first > 150 and await page.evaluate(left) < 2
        await expect(log.locator(".l").nth(first + 5)).to_be_attached()
        assert await page.evaluate(left) < 2, "it grew, and is at its end"
        await page.evaluate("document.getElementById('stdout').scrollTop = 40")
        second = await log.locator(".l").count()
        await expect(log.locator(".l").nth(second + 5)).to_be_attached()
        assert await page.evaluate("document.getElementById('stdout').scrollTop") == 40
    with acting_as(dashboard.ada):
        await dashboard.lab.commands.cancel(job)


@in_browser
async def test_without_scripts_lists_are_filtered_and_attempts_compared(browser: Browser, dashboard: Dashboard):
    async with looking(browser, dashboard, java_script_enabled=False) as page:
        await page.goto(f"{dashboard.url}/attempts")
        await page.get_by_label("Search").fill("cp.async")
        await page.get_by_label("Sort by").select_option("speed-up")
        await page.get_by_role("button", name="Apply").click()
        await expect(page.get_by_text("2 attempts found")).to_be_visible()
        boxes = page.get_by_role("checkbox")
        await boxes.nth(0).check()
        await boxes.nth(1).check()
        await page.get_by_role("button", name="Compare the two chosen").click()
        await expect(page.get_by_role("heading", name="Comparison")).to_be_visible()
        await page.goto(f"{dashboard.url}/attempts/{dashboard.handles['best']}")
        await expect(page.get_by_role("heading", name="Source")).to_be_visible()
        assert await page.get_by_role("button", name="Copy").count() == 0, "a button that does nothing is not shown"
