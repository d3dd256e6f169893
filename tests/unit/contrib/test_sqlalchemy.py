"""TTL on SQLAlchemy's tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Column, DateTime, ForeignKey, Integer, MetaData, Table, create_engine, orm, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

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


class Base(DeclarativeBase):
    pass


class Owner(Base):
    __tablename__ = "owners"
    id: Mapped[int] = mapped_column(primary_key=True)
    events: Mapped[list[Event]] = relationship()


class Event(Base):
    __tablename__ = "Odd Events"
    __lapse__ = contrib.Ttl("At", timedelta(days=30), job_cron="@daily")
    id: Mapped[int] = mapped_column(primary_key=True)
    owner_id: Mapped[int] = mapped_column(ForeignKey("owners.id"))
    at: Mapped[datetime | None] = mapped_column("At", DateTime)


class Visit(Base):
    __tablename__ = "visits"
    __lapse__ = contrib.Ttl(after="1 month")
    id: Mapped[int] = mapped_column(primary_key=True)


def test_live_rows_of_a_class_wherever_it_occurs(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'app.db'}"
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    contrib.apply(Base.metadata, url)
    now = datetime.now(UTC).replace(tzinfo=None)
    ages = (None, timedelta(0), timedelta(days=30, seconds=-20), timedelta(days=30), timedelta(days=99))
    with orm.Session(engine) as session:
        session.add(Owner(id=1, events=[Event(at=None if age is None else now - age) for age in ages]))
        session.add_all((Visit(id=1), Visit(id=2)))
        session.commit()
        session.execute(text("UPDATE visits SET crdb_internal_expiration = '2020-01-01 00:00:00.000Z' WHERE id = 2"))
        session.commit()
        live = contrib.live(Event)
        assert session.scalars(select(Event.id).order_by(Event.id).options(live)).all() == [1, 2, 3]
        other = orm.aliased(Event)
        pairs = select(Event.id, other.id).join(other, other.id == Event.id + 1).options(live)
        assert session.execute(pairs).all() == [(1, 2), (2, 3)]
        (owner,) = session.scalars(select(Owner).options(orm.selectinload(Owner.events), live))
        assert len(owner.events) == 3
        assert session.scalars(select(Visit.id).options(contrib.live(Visit))).all() == [1]
        assert session.scalars(select(Event.id).where(contrib.expired(Event))).all() == [4, 5]
        with pytest.raises(UsageError, match="Owner has no TTL"):
            contrib.live(Owner)
    engine.dispose()
    with lapse.open(url) as db:
        assert db.run().deleted >= 0
        assert {stored.policy.job_cron for stored in db.policies()} == {"@daily", None}


class Order(Base):
    __tablename__ = "orders"
    __lapse__ = contrib.Ttl("at", "30 days", filter="State = 'done' AND amount < 10")
    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    state: Mapped[str] = mapped_column("State")
    amount: Mapped[int]


def test_live_rows_of_a_class_with_a_filter(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'app.db'}"
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    contrib.apply(Base.metadata, url)
    rows = [("done", 1), ("open", 1), ("done", 10), ("done", 9)]
    old = datetime(2020, 1, 1, tzinfo=UTC).replace(tzinfo=None)
    with orm.Session(engine) as session:
        session.add_all(Order(at=old, state=state, amount=amount) for state, amount in rows)
        session.commit()
        assert session.scalars(select(Order.id).order_by(Order.id).options(contrib.live(Order))).all() == [2, 3]
    with lapse.open(url) as db:
        db.run("orders", confirm=True)
        assert [row[0] for row in db.execute("SELECT id FROM orders ORDER BY id").rows] == [2, 3]
    engine.dispose()


def test_mistakes_in_a_ttl_are_told_where_they_are_made() -> None:
    with pytest.raises(UsageError, match="job_crom is not known"):
        contrib.Ttl("at", "1 day", job_crom="@daily")
    with pytest.raises(UsageError, match="does not say when"):
        contrib.Ttl(hide=True)
    with pytest.raises(UsageError, match="stands alone"):
        contrib.Ttl("at", expression="at")
