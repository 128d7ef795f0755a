"""``schemas/`` says which columns a catalogue has, and what a build writes.

After a deliberate change: ``PYTHONPATH=. python tests/unit/catalog/test_schema.py > schemas/catalog-arrow-schema.txt``.
"""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from pyarrow import parquet

from hurray_arrow.catalog import build_catalog, open_catalog
from hurray_arrow.catalog.columns import SCHEMAS
from hurray_arrow.catalog.writer import PREFIX_SCHEMA
from tests.unit.catalog.samples import KEY, write
from tests.unit.test_schemas import field_lines

FOLDER = Path(__file__).parents[3] / "schemas"


def printed() -> str:
    """Return the schemas of the table and of the digests as text, one field a line."""
    lines = ["The columns of a catalogue, version 1. Indented: children."]
    titles = {f"rows: {rows}": schema for rows, schema in SCHEMAS.items()}
    for title, schema in {**titles, "a run of digests": PREFIX_SCHEMA}.items():
        lines += ["", title, ""]
        for field in schema:
            lines += field_lines(field, "  ")
    return "\n".join(lines) + "\n"


def test_the_columns_as_text():
    assert (FOLDER / "catalog-arrow-schema.txt").read_text() == printed()


@pytest.mark.parametrize("rows", SCHEMAS)
@pytest.mark.parametrize("key", [None, KEY], ids=["without", "with"])
def test_what_a_build_writes_is_what_the_schemas_say(tmp_path, rows, key):
    for name in ("a", "b"):
        write(tmp_path / "cache" / f"{name}.arrow", tokens=37)
    path = tmp_path / "c.parquet"
    build_catalog(tmp_path / "cache", destination=path, rows=rows, key=key)
    assert parquet.read_schema(path).equals(SCHEMAS[rows])
    document = json.loads(parquet.read_metadata(path).metadata[b"hurray_arrow.catalog"])
    schema = json.loads((FOLDER / "catalog.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(document)
    described = set(schema["properties"]) - ({"prefixes"} if key is None else set())
    assert set(document) == described
    if key is not None:
        assert set(document["prefixes"]) == set(schema["properties"]["prefixes"]["properties"])
        runs = document["prefixes"]["runs"]
        assert [run["kind"] for run in runs] == ["steps", "ends"]
        assert all(set(run) == set(schema["$defs"]["run"]["properties"]) for run in runs)
        assert all(run["offset_bytes"] % 64 == 0 for run in runs)
        with open_catalog(path) as catalogue:
            for run in catalogue.document.runs:
                high = catalogue.run(run, verify=True).high
                assert (high[1:] >= high[:-1]).all()
                assert len(high) == run.num_rows > 0


if __name__ == "__main__":
    print(printed(), end="")  # noqa: T201 - to be redirected into the file
