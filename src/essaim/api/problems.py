"""Errors as problem details (RFC 9457), with our stable code and what to do next."""

import http
import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response

from essaim.api.limits import TooManyError
from essaim.model.errors import (
    EssaimError,
    ForbiddenError,
    HeldError,
    InvalidError,
    MovedError,
    RejectedError,
    SetupError,
    StuckError,
    TransientError,
    UnauthorisedError,
    UnknownError,
)
from essaim.model.words import WORDS, language, words

MEDIA_TYPE = "application/problem+json"
log = logging.getLogger(__name__)

#: The first class that fits counts.
STATUS: Sequence[tuple[type[EssaimError], int]] = (
    (TooManyError, 429),
    (UnauthorisedError, 401),
    (ForbiddenError, 403),
    (UnknownError, 404),
    (InvalidError, 422),
    (HeldError, 409),
    (MovedError, 409),
    (RejectedError, 409),
    (StuckError, 409),
    (TransientError, 503),
    (SetupError, 503),
)

#: Codes of what goes wrong before any of our own code is asked.
CODES = {400: "malformed", 404: "unknown", 405: "method", 413: "too-large", 422: "invalid"}
NOT_TELLING = 500  #: details of what nobody foresaw are for the log
BUSY = 503


class Wrong(BaseModel):
    """One thing wrong with a request."""

    model_config = ConfigDict(title="Wrong")

    where: str = Field(description="Where in the request", examples=["body.count"])
    what: str = Field(
        examples=["Input should be greater than or equal to 1"], description="What is wrong with it"
    )


class Problem(BaseModel):
    """Why a request failed, as RFC 9457 wants it told."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "type": "about:blank",
                "title": "Conflict",
                "status": 409,
                "code": "quota",
                "detail": "this would be 5 machines at a time, and 4 are allowed",
                "hint": "release a lease first",
            }
        }
    )

    type: str = Field(
        default="about:blank", description="Always `about:blank`: `code` tells the kind"
    )
    title: str = Field(description="In the language of Accept-Language: English or French")
    status: int = Field(description="The HTTP status")
    code: str = Field(description="Stable: programs may rely on it")
    detail: str = Field(description="What is wrong, in words")
    hint: str = Field(description="What to do next, when somebody knows")
    errors: list[Wrong] | None = Field(
        default=None, description="Each thing wrong with the request"
    )


def respond(
    asked: Headers,
    status: int,
    code: str,
    detail: str,
    *,
    hint: str = "",
    errors: list[Wrong] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Answer with a problem, whose title is in the language that was asked for."""
    tongue = language(asked.get("accept-language", ""))
    key = f"problem.{status}"
    title = words(key, tongue) if key in WORDS else http.HTTPStatus(status).phrase
    problem = Problem(
        title=title, status=status, code=code, detail=detail, hint=hint, errors=errors
    )
    # Escaped: what was sent may hold halves of characters, which no UTF-8 can carry.
    text = json.dumps(problem.model_dump(exclude_none=True))
    told = {"Content-Language": tongue if tongue == "en" else f"{tongue}, en", **(headers or {})}
    return Response(text, status, headers=told, media_type=MEDIA_TYPE)


def status_of(error: EssaimError) -> int:
    """The HTTP status that says the same as an error."""
    return next((status for kind, status in STATUS if isinstance(error, kind)), NOT_TELLING)


def ours(request: Request, error: Exception) -> Response:
    """Answer for an error that Essaim raised on purpose."""
    if not isinstance(error, EssaimError):
        raise error
    status = status_of(error)
    headers = {}
    if isinstance(error, UnauthorisedError):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, TooManyError):
        headers["Retry-After"] = str(math.ceil(error.wait))
    if status == BUSY:
        headers["Retry-After"] = "1"
    errors, hint = None, error.hint
    if isinstance(error, InvalidError):
        errors = [Wrong(where=str(p.place or "request"), what=p.what) for p in error.problems]
        hint = next((p.hint for p in error.problems if p.hint), "")
    return respond(
        request.headers,
        status,
        error.code,
        error.what,
        hint=hint,
        errors=errors,
        headers=headers,
    )


#: What our schemas ask for, in words; the rest is as pydantic says it.
_WORDS = {
    "missing": "is missing",
    "extra_forbidden": "is not known",
    "string_pattern_mismatch": "is not written as it must be; see its examples",
    "string_too_short": "must have {min_length} characters or more",
    "string_too_long": "must have {max_length} characters or fewer",
    "greater_than_equal": "must be {ge} or more",
    "less_than_equal": "must be {le} or less",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "string_type": "must be text",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
}


def invalid(request: Request, error: Exception) -> Response:
    """Answer for a request that is not what the schema says; never repeats what was sent."""
    if not isinstance(error, RequestValidationError):
        raise error
    errors = [_wrong(each) for each in error.errors()]
    detail = "; ".join(f"{_named(each.where)}: {each.what}" for each in errors[:3])
    hint = "see /openapi.json for what is expected"
    return respond(request.headers, 422, CODES[422], detail, hint=hint, errors=errors)


def _named(where: str) -> str:
    """The name people know a value by: where in the request it stood is for programs."""
    return re.sub(r"^(body|query|path|header)\.", "", where)


def _wrong(error: Mapping[str, Any]) -> Wrong:
    where = ".".join(str(part) for part in error["loc"])
    return Wrong(where=where[:200], what=_words(error)[:500])


def _words(error: Mapping[str, Any]) -> str:
    """What is wrong with a value, without regular expressions and powers of ten."""
    context = {
        name: f"{value:.12g}" if isinstance(value, float) else value
        for name, value in error.get("ctx", {}).items()
    }
    words = _WORDS.get(error["type"])
    return words.format(**context) if words else str(error["msg"])


def refused(request: Request, error: Exception) -> Response:
    """Answer for what the framework itself refuses: no such path, no such method."""
    if not isinstance(error, HTTPException):
        raise error
    code = CODES.get(error.status_code, "error")
    return respond(
        request.headers, error.status_code, code, str(error.detail), headers=error.headers
    )


def unforeseen(request: Request, error: Exception) -> Response:
    """Answer for a mistake of ours; the log has the rest."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    what = "this is a mistake of the server"
    return respond(request.headers, NOT_TELLING, "error", what, hint="see the server's log")


def install(app: FastAPI) -> None:
    """Have every error of an application answered as a problem."""
    app.add_exception_handler(EssaimError, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(Exception, unforeseen)


MEANINGS = {
    400: "The request cannot be read",
    401: "The caller did not prove who they are",
    403: "The caller may not do this",
    404: "There is no such thing, or it is not the caller's",
    405: "This is not done with this path",
    409: "The world said no: see `code`",
    413: "The request is too large",
    422: "The request is not what was expected",
    429: "Too many tries",
    503: "Not now: try again",
}


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Document the problems a route may answer with, beside those that any may."""
    return {status: _documented(status) for status in sorted({*statuses, 400, 413, 422, 503})}


def _documented(status: int) -> dict[str, Any]:
    documented: dict[str, Any] = {
        "description": MEANINGS[status],
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    headers = {401: "WWW-Authenticate", 429: "Retry-After", 503: "Retry-After"}
    if status in headers:
        documented["headers"] = {headers[status]: {"schema": {"type": "string"}}}
    return documented
