"""The form that Prefect shows: it is made from the flows' parameters, and says of each field what it is."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema

from flows.served import train_draft_flow
from flows.served_retrain import retrain_flow
from flows.served_synthesize import synthesize_flow


def fields(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and schema of each field: the parameters, and what the sections hold."""
    yield from schema["properties"].items()
    for section, definition in schema["definitions"].items():
        yield from ((f"{section}.{name}", field) for name, field in definition.get("properties", {}).items())


@pytest.mark.parametrize("flow", [train_draft_flow, retrain_flow, synthesize_flow], ids=lambda flow: flow.name)
def test_each_field_says_what_it_is(flow: Callable[..., Any]) -> None:
    schema = parameter_schema(flow).model_dump_for_openapi()
    sections = {name for name, definition in schema["definitions"].items() if definition.get("description")}
    unsaid = [
        name
        for name, field in fields(schema)
        if not field.get("description") and str(field.get("$ref", "")).rpartition("/")[2] not in sections
    ]
    assert not unsaid
    drop_downs = [
        name for name, field in fields(schema) if "enum" in field or any("enum" in one for one in field.get("anyOf", []))
    ]
    assert "TrainingSettings.scheduler" in drop_downs and "VerifierSettings.chat_format" in drop_downs
