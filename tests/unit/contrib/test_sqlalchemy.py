"""TTL on SQLAlchemy's tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Column, DateTime, Integer, MetaData, Table, create_engine

import lapse
from lapse.contrib import sqlalchemy as contrib
from lapse.errors import PolicyConflict, UsageError


def _metadata(**keys: object) -> MetaData:
    metadata = MetaData()
    columns = (Column("id", Integer, primary_key=True), Column("at", DateTime))
    Table("events", metadata, *columns, info={"lapse": keys})
    Table("accounts", metadata, Column("id", Integer, primary_key=True))
    return metadata


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'app.db'}"
    engine = create_engine(url)
    _metadata().create_all(engine)
    engine.dispose()
    return url


def test_apply_is_repeatable(url: str) -> None:
    metadata = _metadata(column="at", after="30 days", ttl_adaptive=False)
    assert len(contrib.plan(metadata, url).changes) == 1
    assert len(contrib.apply(metadata, url).changes) == 1
    assert contrib.apply(metadata, url).is_empty
    with lapse.open(url) as db:
        (stored,) = db.policies()
        assert (stored.policy.column, stored.policy.adaptive) == ("at", False)


def test_what_cannot_work_is_refused(url: str) -> None:
    with pytest.raises(PolicyConflict, match="nope"):
        contrib.apply(_metadata(column="nope", after="1 day"), url)
    with pytest.raises(UsageError, match="belong together"):
        contrib.apply(_metadata(column="at"), url)
    with pytest.raises(UsageError, match="ttl_nope is not known"):
        contrib.apply(_metadata(ttl_nope=1), url)


def test_an_excluded_table_has_none(url: str) -> None:
    contrib.apply(_metadata(ttl_expire_after="1 day"), url)
    contrib.apply(_metadata(exclude="it stays"), url)
    with lapse.open(url) as db:
        assert db.policies() == []
