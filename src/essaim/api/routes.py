"""How routes are made, in every module that has some."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter

if TYPE_CHECKING:
    from fastapi.routing import APIRoute


def routes(tag: str, *, prefix: str = "/api") -> APIRouter:
    """Make a router whose operations are called as their functions are."""
    return APIRouter(prefix=prefix, tags=[tag], generate_unique_id_function=_name)


def _name(route: APIRoute) -> str:
    return route.name
