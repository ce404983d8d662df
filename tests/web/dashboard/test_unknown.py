"""Pages about GPUs whose driver does not say all of them."""

import json

from gpu_mcp_server.settings.server_settings import LocalHost
from tests.hostd.laboratory import wrapped
from tests.laboratory import Folder
from tests.web.site import lab_of, served


async def test_what_a_gpu_does_not_say_is_unknown_on_the_pages():
    silent = {
        "uuid": "GPU-a",
        "memory_total_bytes": None,
        "memory_used_bytes": None,
        "utilization_percent": None,
        "pids": None,
    }
    half = {"uuid": "GPU-b", "memory_total_bytes": 7 << 30, "memory_used_bytes": None}
    with Folder() as own:
        (own / "gpus.json").write_text(json.dumps([silent, half]))
        env = {"GPU_MCP_HOSTD_GPUS": str(own / "gpus.json"), "GPU_MCP_HOSTD_LOCKS": str(own / "locks")}
        host = LocalHost(python=str(wrapped(own / "state", env)), state_dir=str(own / "state"))
        async with served(tokens=False, hosts={"local": host}, default_host="local") as site:
            await (await lab_of(site)).status.gpus.status("local")
            while "GPU-a" not in (pool := await site.ask("GET", "/")).text:
                assert "asked and has not answered yet" in pool.text
            hosts = await site.ask("GET", "/hosts")
    assert pool.status_code == hosts.status_code == 200
    unknown, known = pool.text.split('<tr id="GPU-a">')[1].split('<tr id="GPU-b">')
    assert '<span class="soft">unknown</span>' in unknown and "None" not in pool.text
    assert "7 GiB" in known.split("</table>")[0] and "unknown" not in known.split("</table>")[0]
