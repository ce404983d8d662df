"""Pages made from templates, and what every answer of the dashboard says of itself to the browser."""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from gpu_mcp_server import __version__, time_format
from gpu_mcp_server.package_files import PACKAGE
from gpu_mcp_server.plots.outcome_shades import status_class
from gpu_mcp_server.text_safety import escape_controls
from gpu_mcp_server.web.dashboard import text_format
from gpu_mcp_server.web.dashboard.whiskers import range_of

HERE = PACKAGE / "web" / "dashboard"
STATIC = HERE / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Everything comes from here, nothing is inline; pictures are elements of the page or files of ours."""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

FILTERS: Sequence[Any] = (
    text_format.display_text, time_format.format_duration, time_format.format_elapsed, text_format.format_age,
    text_format.format_microseconds, text_format.format_microsecond_range, text_format.clock,
    text_format.format_number, text_format.size, status_class, range_of,
)  # fmt: skip
"""What templates know by its name."""
SECTIONS = (
    ("/", "Pool"),
    ("/processors", "Processors"),
    ("/problems", "Problems"),
    ("/attempts", "Attempts"),
    ("/runs", "Runs"),
    ("/jobs", "Jobs"),
    ("/users", "Users"),
    ("/usage", "Usage"),
    ("/hosts", "Hosts"),
)


def _visible(value: Any) -> Any:
    """Make what a template prints visible, whether or not it asks for that; markup is ours and did so itself."""
    return escape_controls(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update({each.__name__: each for each in FILTERS})
    return environment


ENVIRONMENT = _environment()


def page(
    request: Request, template: str, about: Mapping[str, Any], *, visitor: Any, section: str = "", status: int = 200
) -> Response:
    """Return a page; a request of htmx gets the part of it that lives.

    Args:
        request: What was asked.
        template: `NAME.html`; its live part, if it has one, is `_NAME.html`.
        about: What the template shows.
        visitor: Who looks; None before they said who they are.
        section: Address of the section it belongs to.
        status: Of HTTP.
    """
    live = "_" + template
    name = live if is_live(request) and (HERE / "templates" / live).exists() else template
    always = {"visitor": visitor, "section": section, "sections": SECTIONS, "version": __version__}
    said = ENVIRONMENT.get_template(name).render(always, **about)
    return HTMLResponse(said, status, HEADERS)


def is_live(request: Request) -> bool:
    """Say whether htmx asks for the part of a page that lives, not for the page."""
    return request.headers.get("hx-request") is not None


def safe_svg(svg: str) -> Markup:
    """Mark a picture of ours as elements of the page; what it says of others it has escaped itself."""
    return Markup(svg)  # noqa: S704
