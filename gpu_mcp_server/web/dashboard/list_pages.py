"""Lists that are searched, filtered and sorted: what their addresses say, and the addresses of their links."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from starlette.requests import Request

from gpu_mcp_server.services.status.listings import FILTERS, MAX_COUNTED, ORDERS, ListRequest

PAGE_ROWS = 50
MAX_PAGE = 10_000
VALUE_CHARS = 200
"""Of each value in an address."""


@dataclass(frozen=True)
class ListView:
    """One list as its address asks for it."""

    name: str
    """jobs, attempts or problems."""
    request: ListRequest
    choices: Mapping[str, Sequence[str]]
    matching: int = 0

    @property
    def orders(self) -> Sequence[str]:
        """Return what it can be sorted by."""
        return ORDERS[self.name]

    @property
    def sort(self) -> str:
        """Return what it is sorted by."""
        return self.request.sort if self.request.sort in self.orders else self.orders[0]

    @property
    def is_filtered(self) -> bool:
        """Say whether rows may be left out."""
        return bool(self.request.words or any(self.request.chosen.values()) or self.request.skip)

    @property
    def page(self) -> int:
        """Return the number of the page, from 0."""
        return self.request.skip // PAGE_ROWS

    @property
    def count_text(self) -> str:
        """Return how many rows match, in words."""
        return f"{self.matching:,}" if self.matching <= MAX_COUNTED else f"more than {MAX_COUNTED:,}"

    @property
    def has_more(self) -> bool:
        """Say whether a page follows."""
        return self.matching > self.request.skip + PAGE_ROWS

    def address(self, **changes: str | int) -> str:
        """Return the address of the list as it is, with changes; another order or filter begins at its first page."""
        said: dict[str, str | int] = {"q": self.request.words, **self.request.chosen, "sort": self.request.sort}
        said |= {"page": self.page if not changes else 0} | changes
        kept = {name: value for name, value in said.items() if value not in ("", 0)}
        return f"/{self.name}?{urlencode(kept)}" if kept else f"/{self.name}"


def list_request_of(request: Request, name: str) -> ListRequest:
    """Return what an address asks of a list; what it does not know it leaves aside."""
    said = {key: value[:VALUE_CHARS] for key, value in request.query_params.items()}
    number = said.get("page", "0")
    page = min(int(number), MAX_PAGE) if number.isascii() and number.isdigit() and len(number) < 6 else 0
    return ListRequest(
        words=said.get("q", "").replace("\0", "").strip(),
        chosen={key: said[key] for key in FILTERS[name] if said.get(key)},
        sort=said.get("sort", ""),
        skip=page * PAGE_ROWS,
        limit=PAGE_ROWS,
    )
