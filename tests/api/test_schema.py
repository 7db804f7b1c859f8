"""The description of the API is complete and true."""

from __future__ import annotations

import contextlib

import hypothesis
import pytest
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode, checks

from api.rig import KEY, Plane, options, routes
from essaim.api.app import create_app
from essaim.model.fleet import NodeState, Role, Wish
from essaim.usecases.leases import rent

DOCUMENT = create_app(None).openapi()
OPERATIONS = [(m, path) for path, item in DOCUMENT["paths"].items() for m in item]
TRUE = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
EXAMPLES = 20

#: Bounded and the same each time; the world is shared by all examples of a route on purpose.
BOUNDED = hypothesis.settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
)


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with contextlib.closing(Plane(f"sqlite:///{tmp_path_factory.mktemp('api')}/essaim.db")) as made:
        yield made


@pytest.fixture(scope="module")
def known(plane) -> dict[str, str]:
    """Things that are there, to be named by some requests."""
    node, credential = plane.join("machine")
    plane.fleet.move(node, NodeState.READY, of=[NodeState.CLEANING])
    plane.user("root", Role.ADMIN)
    lease = rent(plane, plane.user("somebody"), Wish(), KEY)
    return {
        "node_id": node,
        "lease_id": lease.id,
        "run_id": lease.run,
        "name": "somebody",
        "credential": credential,
    }


@pytest.fixture(scope="module")
def schema(plane):
    app = create_app(plane, options(stream_seconds=0.0))
    return schemathesis.openapi.from_asgi("/openapi.json", app)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("route", OPERATIONS, ids=" ".join)
def test_no_request_breaks_the_server_or_gets_an_undocumented_answer(
    route, mode, plane, known, schema
):
    method, path = route
    operation = schema[path][method]
    token = plane.token(plane.people.find("root")[0])
    if path == "/api/workers/heartbeat":
        token = known["credential"]
    got: list[int] = []

    @BOUNDED
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode), real=st.booleans())
    def check(case, real):
        if real:
            name_real_things(case, plane, known)
        if path == "/api/rent" and isinstance(case.body, dict):
            case.body["patience"] = 0  # nobody waits here
        answer = case.call_and_validate(headers={"Authorization": f"Bearer {token}"}, checks=TRUE)
        got.append(answer.status_code)

    try:
        check()
    except hypothesis.errors.Unsatisfiable:
        assert (
            mode is GenerationMode.NEGATIVE
        )  # nothing can be wrong with a request that has nothing
        return
    if mode is GenerationMode.POSITIVE:
        # Else only the validation would have been tried, and nothing behind it.
        assert {status for status in got if status not in (400, 422)}, got


def name_real_things(case, plane, known) -> None:
    for name in set(case.path_parameters or {}) & set(known):
        case.path_parameters[name] = known[name]
    if isinstance(case.body, dict) and "lease" in case.body:
        case.body["lease"] = known["lease_id"]
    if isinstance(case.body, dict) and "token" in case.body:
        case.body["token"] = plane.enrolment()


def test_every_route_is_described():
    described = {(method.upper(), path) for method, path in OPERATIONS}
    pages = {"/openapi.json", "/", "/docs", "/site/{name}", "/bruno.zip"}
    assert routes(create_app(None)) - described == {("GET", path) for path in pages}


def test_every_field_and_parameter_is_described():
    schemas = DOCUMENT["components"]["schemas"]
    fields = [
        f"{name}.{field}"
        for name, schema in schemas.items()
        for field, about in schema.get("properties", {}).items()
        if not about.get("description")
    ]
    parameters = [
        f"{method} {path} {parameter['name']}"
        for method, path in OPERATIONS
        for parameter in DOCUMENT["paths"][path][method].get("parameters", ())
        if not parameter.get("description")
    ]
    assert fields + parameters == []


def test_summaries_are_short_sentences_for_people():
    summaries = [DOCUMENT["paths"][path][method]["summary"] for method, path in OPERATIONS]
    assert "Rent machines" in summaries
    assert len(set(summaries)) == len(summaries)
    assert [each for each in summaries if len(each) > 90 or each.endswith(".")] == []


def test_the_description_says_where_the_server_is():
    assert DOCUMENT["servers"] == [{"url": "/"}]
    told = create_app(None, options(public_url="https://lab.example.org")).openapi()
    assert told["servers"] == [{"url": "https://lab.example.org"}]


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_operation_says_what_it_does_and_how_it_fails(method, path):
    operation = DOCUMENT["paths"][path][method]
    assert operation["description"]
    for status, answer in operation["responses"].items():
        assert answer["description"], status
        if int(status) >= 400:
            assert set(answer["content"]) == {"application/problem+json"}
        elif status != "204":
            assert answer["content"]
    if operation.get("security"):
        assert "401" in operation["responses"]


def test_every_request_body_has_examples_and_refuses_what_it_does_not_know():
    schemas = DOCUMENT["components"]["schemas"]
    bodies = [
        DOCUMENT["paths"][path][method]["requestBody"]["content"]["application/json"]["schema"]
        for method, path in OPERATIONS
        if "requestBody" in DOCUMENT["paths"][path][method]
    ]
    references = [found for body in bodies for found in (body, *body.get("anyOf", []))]
    names = {each["$ref"].rsplit("/", 1)[1] for each in references if "$ref" in each}
    assert len(names) >= 10
    for name in names:
        assert schemas[name]["additionalProperties"] is False
        shown = [
            field
            for field in schemas[name]["properties"].values()
            if "examples" in field or "default" in field or "$ref" in field or "anyOf" in field
        ]
        assert shown, name
