"""The statements of the reference documents run as they are printed, where the rest of them is this engine's SQL."""

from __future__ import annotations

import pytest

from lapse.errors import LapseError
from tests.conformance.harness import Harness
from tests.references import REFERENCE_STATEMENTS, ReferenceStatement

RUNNABLE = [statement for statement in REFERENCE_STATEMENTS if statement.engines and statement.requires is None]


@pytest.mark.parametrize("statement", RUNNABLE, ids=[statement.name for statement in RUNNABLE])
def test_as_printed(h: Harness, statement: ReferenceStatement) -> None:
    if h.db.engine.dialect not in statement.engines:
        pytest.skip("apart from its TTL part it is another engine's SQL")
    if "UUID" in statement.sql and not h.features.uuid_type:
        pytest.skip("there is no type UUID")
    implied = statement.name in ("rfc-other-syntax-create", "rfc-other-syntax-set")
    if ("ttl_expire_after" in statement.sql or implied) and not h.features.managed_column:
        pytest.skip("there is no managed column")
    if "tidb_ttl_" in statement.sql and not h.features.own_settings:
        pytest.skip("they are variables of the server's")
    # The documents give no zone for times without one.
    h.backend.keep_in_utc(h.url)
    for lapse in (h.owner, h.db):
        lapse.engine.database.dispose()
    for step in statement.setup:
        h.sql(step)
    if statement.refused is not None:
        with pytest.raises(LapseError):
            h.sql(statement.sql)
        return
    h.sql(statement.sql)
    if statement.kind == "CreateTable":
        (stored,) = h.db.policies()
        assert h.db.run(stored.table.name).failed is False
