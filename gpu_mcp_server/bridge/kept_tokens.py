"""The tokens for servers elsewhere, which `login` keeps on this machine."""

import json
import os
from pathlib import Path

from gpu_mcp_server.errors import BadRequest, NotFound

CURRENT = "current"
"""Beside the tokens by address: the address that commands act on."""


def address_of(url: str) -> str:
    """Return a server's address without a path.

    Raises:
        BadRequest: If it is none, or a token would travel in the open to another machine.
    """
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadRequest(f"{url!r} is no address of a server.", hint="Say https://gpu.example.org.")
    if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        raise BadRequest(
            f"{url!r} is not encrypted: machines on the way could read the token.",
            hint="Use https, or reach the server through `ssh -L 8765:127.0.0.1:8765 HOST` as http://127.0.0.1:8765.",
        )
    return f"{parts.scheme}://{parts.netloc}"


def kept_token(address: str) -> str:
    """Return the token that is kept for a server.

    Raises:
        NotFound: If there is none.
    """
    found = _read().get(address)
    if found is None:
        raise NotFound("login for", address, hint=f"gpu-mcp-server login {address} makes one.")
    return found


def current_server() -> str | None:
    """Return the server that commands act on: the one of the last login."""
    known = _read()
    found = known.get(CURRENT)
    return found if found in known else None


def keep_token(address: str, secret: str) -> None:
    """Keep a token where this user alone can read it; commands act on its server from now on."""
    _keep({**_read(), address: secret, CURRENT: address})


def forget_token(address: str) -> None:
    """Forget the token for a server; commands act on this machine if they acted on that server.

    Raises:
        NotFound: If there is none.
    """
    kept_token(address)
    _keep({name: value for name, value in _read().items() if address not in (name, value)})


def _keep(known: dict[str, str]) -> None:
    path = tokens_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        json.dump(known, out, indent=2)
    temporary.replace(path)


def tokens_file() -> Path:
    """Return where tokens are kept."""
    from gpu_mcp_server.settings.server_settings import user_config_file

    return user_config_file().with_name("logins.json")


def _read() -> dict[str, str]:
    try:
        return json.loads(tokens_file().read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
