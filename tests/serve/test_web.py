"""What /openapi.json says of the API is what the API answers and takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from starlette.routing import Route
from starlette.testclient import TestClient

from automap_models.serve import web

QUESTION = {"model": "gpt2", "cluster": "8xh100", "global_batch": 16, "tp": 2, "pp": 2}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(web.application(remote=False), base_url="http://127.0.0.1") as client:
        yield client


@pytest.fixture(scope="module")
def document(client: TestClient) -> dict[str, Any]:
    answer: dict[str, Any] = client.get("/openapi.json").json()
    return answer


def closed(schema: object) -> object:
    """The same schema, in which objects have the named keys alone."""
    if isinstance(schema, dict):
        inside = {key: closed(value) for key, value in schema.items()}
        return {"additionalProperties": False, **inside} if "properties" in schema else inside
    return [closed(part) for part in schema] if isinstance(schema, list) else schema


def validator(document: dict[str, Any], schema: dict[str, Any]) -> Draft202012Validator:
    closed_schema = closed({**schema, "components": document["components"]})
    assert isinstance(closed_schema, dict)
    Draft202012Validator.check_schema(closed_schema)
    return Draft202012Validator(closed_schema)


def answers(document: dict[str, Any], path: str, status: str = "200") -> dict[str, Any]:
    (asking,) = document["paths"][path].values()
    ((_, content),) = asking["responses"][status]["content"].items()
    schema: dict[str, Any] = content["schema"]
    return schema


def test_it_has_every_address_of_the_api_with_its_methods(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1.")
    routes = web.application(remote=False).routes
    addresses = {route.path: route.methods for route in routes if isinstance(route, Route) and "/api" in route.path}
    assert document["paths"].keys() == addresses.keys()
    for path, methods in addresses.items():
        assert {method.upper() for method in document["paths"][path]} == methods - {"HEAD"}


@pytest.mark.parametrize("path", ["price", "choices", "timeline", "copy/{target}"])
@pytest.mark.parametrize(
    "fields",
    [{}, {"recompute": ["none", "full"], "layers": [5, 7], "schedule": "zb-h1"}, {"precision": "fp16", "zero": 1}],
)
def test_an_answer_is_as_its_schema_says(
    client: TestClient, document: dict[str, Any], path: str, fields: dict[str, Any]
) -> None:
    question = {**QUESTION, **fields}
    content = document["paths"][f"/api/{path}"]["post"]["requestBody"]["content"]["application/json"]
    validator(document, content["schema"]).validate(question)
    answer = client.post(f"/api/{path.format(target='python')}", json=question)
    assert answer.status_code == 200
    validator(document, answers(document, f"/api/{path}")).validate(answer.json())


@pytest.mark.parametrize("path", ["models", "clusters"])
def test_what_there_is_to_choose_from_is_as_its_schema_says(
    client: TestClient, document: dict[str, Any], path: str
) -> None:
    validator(document, answers(document, f"/api/{path}")).validate(client.get(f"/api/{path}").json())


@pytest.mark.parametrize("wrong", [{"tp": 3}, {"tp": "2"}, {"model": "no-such"}, {"unknown": 1}, {"micro_batch": 0}])
def test_a_refusal_is_as_its_schema_says(client: TestClient, document: dict[str, Any], wrong: dict[str, Any]) -> None:
    answer = client.post("/api/price", json={**QUESTION, **wrong})
    assert answer.status_code == 422
    validator(document, answers(document, "/api/price", "422")).validate(answer.json())


def test_a_plain_page_links_it(client: TestClient) -> None:
    page = client.get("/api.html")
    assert page.status_code == 200
    assert 'href="openapi.json"' in page.text
    assert 'href="api.html"' in client.get("/").text
