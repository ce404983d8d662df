"""Links of a page on the site."""

from types import SimpleNamespace

from gpu_mcp_server.dev.site_links import on_page_markdown

PAGE = SimpleNamespace(file=SimpleNamespace(src_uri="how-to/gpu-box.md"))


def test_only_links_that_leave_the_documentation_lead_to_the_repository():
    text = "[a](../troubleshooting.md#x) [b](../../SECURITY.md#report) [c](slurm.md) [d](https://e.org/../f)"
    found = on_page_markdown(text, page=PAGE, config={"repo_url": "https://git.example/us"})

    assert found == text.replace("../../SECURITY.md", "https://git.example/us/blob/main/SECURITY.md")
