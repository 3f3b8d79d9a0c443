"""Every value of a record has bounds, and within them it stays as it is."""

import json

import pytest

from results.records import bounds, schema, texts
from results.records.models import QualityMetric


def _parts(part, path=""):
    yield path, part
    if isinstance(part, dict):
        for key, value in part.items():
            yield from _parts(value, f"{path}/{key}")
    if isinstance(part, list):
        for index, value in enumerate(part):
            yield from _parts(value, f"{path}/{index}")


BOUNDS = {
    "integer": ({"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"}),
    "number": ({"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"}),
    "string": ({"maxLength", "pattern", "enum", "const"},),
    "array": ({"maxItems"},),
}


@pytest.mark.parametrize("kind", schema.MODELS)
def test_every_number_text_and_list_of_a_schema_has_bounds(kind):
    """A new field is bounded, or this says which is not."""
    missing = [
        path
        for path, part in _parts(json.loads(schema.render(kind)))
        if isinstance(part, dict) and "const" not in part
        for needed in BOUNDS.get(part.get("type", ""), ())
        if not needed & set(part)
    ]
    missing += [
        path
        for path, part in _parts(json.loads(schema.render(kind)))
        if isinstance(part, dict)
        and isinstance(part.get("additionalProperties"), dict)
        and "maxProperties" not in part
    ]

    assert [] == missing


def test_texts_are_made_fit_for_records_and_terminals():
    """What a library wrote to its log can be anything."""
    assert "\N{REPLACEMENT CHARACTER}b" == texts.storable("xx\0b", 2)
    assert r"\x1b[31m\ud800\n" == texts.printable("\x1b[31m\ud800\n")
    assert bounds.UNSTORABLE.search(texts.storable("\0\ud800", 9)) is None


def test_real_values_stay_as_they_are():
    """Options keep their Python types, on which ids depend."""
    metric = QualityMetric(
        name="FID", value=1.5e9, unit="1", num_examples=10**12, low=-2.0, high=2e9,
        method="m",
    )  # fmt: skip

    assert metric == QualityMetric.model_validate_json(metric.model_dump_json())
