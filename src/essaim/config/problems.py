"""Problems gathered while checking, each with the file and line that is to blame."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from essaim.config.documents import Document, Keys
from essaim.model.errors import InvalidError, Place, Problem
from essaim.model.spelling import meant

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

#: Makes a problem of a path, a sentence and a hint.
Report = Callable[[Keys, str, str], Problem]

Model = TypeVar("Model", bound=BaseModel)

_WORDS = {
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "list_type": "must be a list",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "greater_than_equal": "must be {ge} or more",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be {le} or less",
    "less_than": "must be less than {lt}",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "string_too_short": "must have {min_length} characters or more",
    "string_too_long": "must have {max_length} characters or fewer",
    "too_short": "must have {min_length} entries or more",
    "too_long": "must have {max_length} entries or fewer",
    "string_pattern_mismatch": "is not written as it must be",
}


class HintedError(ValueError):
    """What a schema finds wrong with a value, and what to write instead."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.hint = hint


class Problems:
    """A growing list of problems with one subject: a composed stack, or one file."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.found: list[Problem] = []

    @classmethod
    def of_file(cls, document: Document) -> Problems:
        """Blame lines of that file."""
        return cls(lambda path, what, hint: Problem(what, document.place(path), hint))

    def add(self, path: Iterable[str], what: str, hint: str = "") -> None:
        """Note a problem with what stands at a path."""
        self.found.append(self._report(tuple(path), what, hint))

    def place(self, path: Iterable[str]) -> Place | None:
        """Where what stands at a path was written."""
        return self._report(tuple(path), "", "").place

    def validate(self, model: type[Model], data: Any, at: Keys = ()) -> Model | None:
        """Read data by a schema; None when it does not fit, and then the problems say why."""
        try:
            return model.model_validate(data)
        except ValidationError as exc:
            for error in exc.errors(include_url=False):
                path = (*at, *(str(part) for part in error["loc"]))
                self.add(path, *_say(error, model, ".".join(path)))
            return None

    def check(self) -> None:
        """Raise InvalidError when there is any."""
        if self.found:
            raise InvalidError(self.found)


def _say(error: ErrorDetails, model: type[BaseModel], key: str) -> tuple[str, str]:
    """Word one of pydantic's errors, and hint at what was meant."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "missing":
        return f"{key} is missing", ""
    if kind == "extra_forbidden":
        last = str(error["loc"][-1])
        return f"unknown key {key}", meant(last, _fields(model, error["loc"]), kind="known keys")
    if kind == "value_error":
        wrong = context["error"]
        hint = wrong.hint if isinstance(wrong, HintedError) else ""
        return f"{key} {wrong}, not {_short(error['input'])}", hint
    words = _WORDS.get(kind, error["msg"]).format(**context)
    return f"{key} {words}, not {_short(error['input'])}", ""


def _short(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return "nothing" if value is None else repr(value)


def _fields(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """List the keys that may stand where an unknown one does."""
    for part in loc[:-1]:
        field = model.model_fields.get(str(part))
        model = (_inner(field.annotation) if field else None) or model
    return [field.alias or name for name, field in model.model_fields.items()]


def _inner(annotation: Any) -> type[BaseModel] | None:
    """Find the schema inside an annotation such as `dict[str, Group]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _inner(arg))), None)
