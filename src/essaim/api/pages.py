"""Long lists in pages."""

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, TypeVar
from urllib.parse import urlencode

from fastapi import Depends, Query, Request, Response

from essaim.model.errors import InvalidError, Problem

T = TypeVar("T")

MOST = 500
USUAL = 100
BIG = 2**62
KEY = re.compile(r"[a-z0-9-]{1,64}")


class Page:
    """Which part of a list is asked for."""

    def __init__(
        self,
        request: Request,
        response: Response,
        limit: Annotated[int, Query(ge=1, le=MOST, description="At most so many")] = USUAL,
        after: Annotated[
            str,
            Query(max_length=1024, description="Go on where the Link header of a page says"),
        ] = "",
    ) -> None:
        self._request = request
        self._response = response
        self._limit = limit
        self._after = _read(after) if after else None

    def of(self, items: Iterable[T], key: Callable[[T], list[Any]]) -> list[T]:
        """Cut a page out of a list that is in the order of a unique key; says where the next is.

        A page begins after a key, not after a number: what comes or goes meanwhile shifts nothing.
        """
        ordered = sorted(items, key=key)
        try:
            rest = [i for i in ordered if self._after is None or key(i) > self._after]
        except TypeError as error:
            raise _no_place() from error
        return self.cut(rest, key)

    @property
    def more(self) -> int:
        """How many to ask for: one more than are shown, to know whether there is a next page."""
        return self._limit + 1

    def place(self) -> tuple[int, str] | None:
        """Where a list begins that is in the order of a time and an id; None is its beginning."""
        match self._after:
            case None:
                return None
            case [int(at), str(key)] if abs(at) < BIG and KEY.fullmatch(key):
                return at, key
        raise _no_place()

    def cut(self, rest: Sequence[T], key: Callable[[T], list[Any]]) -> list[T]:
        """Show the beginning of what is left of a list; says where the next page is."""
        page = list(rest[: self._limit])
        if len(rest) > len(page):
            query = dict(self._request.query_params)
            query |= {"limit": str(self._limit), "after": _write(key(page[-1]))}
            path = self._request.url.path
            self._response.headers["Link"] = f'<{path}?{urlencode(query)}>; rel="next"'
        return page


Paged = Annotated[Page, Depends()]

#: For the OpenAPI description of a route that answers with a page.
LINK = {
    "description": "One page, in order",
    "headers": {
        "Link": {
            "description": 'The next page, with rel="next"; missing on the last',
            "schema": {"type": "string"},
        }
    },
}


def _write(key: list[Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode()


def _read(after: str) -> list[Any]:
    try:
        key = json.loads(base64.b64decode(after, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError) as error:
        raise _no_place() from error
    if not isinstance(key, list):
        raise _no_place()
    return key


def _no_place() -> InvalidError:
    return InvalidError([Problem("`after` is not from a Link header of this list")])
