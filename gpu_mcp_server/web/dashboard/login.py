"""Signing in with a token and out again, and the check that a change was asked for from our own pages."""

from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.models.user import User
from gpu_mcp_server.team.tokens import SESSION_S
from gpu_mcp_server.web.authentication import SESSION_COOKIE, shown_session
from gpu_mcp_server.web.dashboard.pages import HEADERS, page

TOKEN_CHARS = 512
"""Of what is typed into the form; a token has 67."""
REFUSED = {
    "unknown": "This token is not known here.",
    "expired": "This token has expired. Ask for a new one.",
    "revoked": "This token was revoked. Ask for a new one.",
}


class Forbidden(GpuMcpError):
    """The visitor may not do what was asked for."""


def user_of_request(request: Request) -> User | None:
    """Return who looks, as the authentication found out."""
    user: Any = getattr(request.state, "user", None)
    return user if isinstance(user, User) else None


def check_own_page(request: Request) -> None:
    """Refuse a change that another site asks for.

    The session's cookie is SameSite=Strict already; this holds where a browser does not heed that. Browsers that say
    nothing of their own sent an Origin. Source: OWASP, Cross-Site Request Forgery Prevention, "Fetch Metadata headers".

    Raises:
        Forbidden: If a browser says that the request is from elsewhere.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    own = site in ("same-origin", "none") if site else origin is None or _is_own(origin, request)
    if not own:
        raise Forbidden("The request came from another site.", hint="Use the buttons of these pages.")


def _is_own(origin: str, request: Request) -> bool:
    public = request.app.state.site.settings.team.public_url
    return urlsplit(origin).netloc in {request.headers.get("host"), urlsplit(public or "").netloc} - {""}


def _is_secure(request: Request) -> bool:
    public = request.app.state.site.settings.team.public_url
    return request.url.scheme == "https" or (public is not None and public.startswith("https:"))


def note(request: Request, user: User, action: str, handle: str | None = None) -> None:
    """Note in the audit log what was done on these pages; wrong tokens leave nothing there."""
    address = request.client.host if request.client else None
    request.app.state.site.team.audit.note(user, f"dashboard {action}", handle, "ok", address)


async def _end_session(request: Request) -> User | None:
    """End the session that the request's cookie names, and return whose it was; None if it names none that counts."""
    tokens, secret = request.app.state.site.team.tokens, shown_session(request.scope)
    found = await tokens.verify(secret) if secret is not None else None
    if not isinstance(found, User) or found.token_id is None:
        return None
    await tokens.revoke(found.token_id)
    return found


async def login(request: Request) -> Response:
    """Show the form; take a token and give a session for it. What is typed ends the session that there was."""
    site = request.app.state.site
    if request.method == "POST" and site.authenticated:
        return await _take_token(request)
    if not site.authenticated or user_of_request(request) is not None:
        return RedirectResponse("/", 303, HEADERS)
    if request.headers.get("hx-request"):
        return Response(status_code=204, headers={**HEADERS, "HX-Redirect": "/login"})
    return page(request, "login.html", {"refused": ""}, visitor=None)


async def _take_token(request: Request) -> Response:
    site = request.app.state.site
    check_own_page(request)
    await _end_session(request)
    form = await request.form(max_files=0, max_fields=4)
    secret = form.get("token")
    found = await site.team.tokens.verify(secret.strip()[:TOKEN_CHARS] if isinstance(secret, str) else "")
    if not isinstance(found, User):
        refused = page(request, "login.html", {"refused": REFUSED[found.reason]}, visitor=None, status=401)
        _forget_session(refused)
        return refused
    response = RedirectResponse("/", 303, HEADERS)
    session = await site.team.tokens.open_session(found)
    note(request, found, "login")
    response.set_cookie(
        SESSION_COOKIE,
        session,
        max_age=SESSION_S,
        path="/",
        secure=_is_secure(request),
        httponly=True,
        samesite="strict",
    )
    return response


async def logout(request: Request) -> Response:
    """End the session."""
    check_own_page(request)
    visitor = await _end_session(request)
    if visitor is not None:
        note(request, visitor, "logout")
    response = RedirectResponse("/login", 303, HEADERS)
    _forget_session(response)
    return response


def _forget_session(response: Response) -> None:
    response.delete_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="strict")
