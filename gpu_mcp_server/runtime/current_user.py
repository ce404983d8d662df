"""User on whose behalf the current work is done."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from gpu_mcp_server.models.user import LOCAL, User

_CURRENT: ContextVar[User] = ContextVar("current_user", default=LOCAL)


def current_user() -> User:
    """Return who the call at hand is made for; tasks inherit it from who started them."""
    return _CURRENT.get()


@contextmanager
def acting_as(user: User) -> Generator[None]:
    """Do what the block does for a user."""
    token = _CURRENT.set(user)
    try:
        yield
    finally:
        _CURRENT.reset(token)


@contextmanager
def as_server() -> Generator[None]:
    """Do what the block does for nobody in particular: it sees everything, and what it makes belongs to nobody."""
    with acting_as(LOCAL):
        yield
