"""Policies in table comments, on every engine whose tables can carry one."""

from __future__ import annotations

import pytest

from lapse.errors import InvalidValue, NotFound
from lapse.model.interval import DAY, Interval
from tests.conformance.harness import Harness

ONE_DAY = "ttl_duration=86400;ttl_col=ts;"


@pytest.fixture
def commented(h: Harness) -> Harness:
    """A table with an expired row and a live one, in a database that obeys every comment."""
    if not h.features.table_comments:
        pytest.skip("this engine has no table comments")
    h.events(ttl="")
    h.insert((1, h.at(days=-2)), (2, h.at()))
    h.sql("SET GLOBAL lapse_trusted_owners = '*'")
    h._may_lack_grants = True
    return h


def statement(h: Harness, text: str) -> str:
    written = text.replace("'", "''")
    if h.features.transactional_ddl:
        return f"COMMENT ON TABLE events IS '{written}'"
    return f"ALTER TABLE events COMMENT = '{written}'"


def comment(h: Harness, text: str) -> None:
    """As any client writes it, without Lapse."""
    with h.client() as connection:
        connection.exec_driver_sql(statement(h, text).replace("%", "%%"))


def comment_of(h: Harness) -> str:
    with h.client() as connection:
        table = h.owner.engine.full_name(connection, h.owner.engine.tables(connection)[0])
        return h.owner.engine.describe(connection, table).comment or ""


@pytest.mark.parametrize(
    "text", [ONE_DAY, f" {ONE_DAY} owner=ada; ", "ttl_expiration_expression=ts + INTERVAL '1 day'"]
)
def test_a_trusted_comment_is_obeyed(commented: Harness, text: str) -> None:
    comment(commented, text)
    assert commented.run(None).deleted == 1
    assert [each.source for each in commented.db.policies()] == ["comment"]
    assert commented.ids() == [2]


@pytest.mark.parametrize("table", [None, "events"])
def test_every_command_knows_it(commented: Harness, table: str | None) -> None:
    comment(commented, ONE_DAY)
    assert commented.db.policy("events").policy.interval == Interval(micros=DAY)
    assert sum(each.survey.expired for each in commented.db.preview("events")) == 1
    assert commented.run(table).deleted == 1


@pytest.mark.parametrize(
    "text",
    [
        "We tried ttl_col=ts; and ttl_duration=60; in 2019 and do not do it any more",
        "Events. ttl_duration=60;ttl_col=ts;",
        "ttl_duration=60;ttl_col=ts; Ask Ada.",
        "ttl_duration=60;ttl_col=ts;see the wiki",
    ],
)
def test_prose_is_not_obeyed(commented: Harness, text: str) -> None:
    comment(commented, text)
    assert commented.run(None).jobs == ()
    assert commented.db.policies() == []
    found = [each for each in commented.db.doctor() if each.subject.endswith("events")]
    assert [each.level for each in found] == ["advice"]
    assert "declares none" in found[0].text
    commented.sql("ALTER TABLE events SET (ttl_expiration_expression = 'ts + INTERVAL ''10 years''')")
    commented.sql("ALTER TABLE events RESET (ttl)")
    assert comment_of(commented) == text


@pytest.mark.parametrize(
    "text",
    [
        "ttl_guard=off;",
        "ttl_partition_drop=on;",
        "ttl_grace=0 seconds;",
        "ttl_replication_origin=o;",
    ],
)
def test_a_comment_cannot_lift_a_protection(commented: Harness, text: str) -> None:
    comment(commented, f"{ONE_DAY}{text}")
    result = commented.run(None)
    assert result.jobs == ()
    assert "may not say" in result.skipped[0].reason
    assert commented.db.policies() == []
    with pytest.raises(InvalidValue, match="may not say"):
        commented.sql(statement(commented, f"{ONE_DAY}{text}"))
    with pytest.raises(InvalidValue, match="may not say"):
        commented.owner.accept("events")


def test_it_is_followed_while_it_is_trusted(commented: Harness) -> None:
    comment(commented, "ttl_duration=864000;ttl_col=ts;")
    assert commented.run(None).deleted == 0
    commented.db.pause("events")
    comment(commented, "ttl_duration=864000;ttl_col=ts;ttl_delete_rate_limit=77;")
    commented.run(None)
    assert (commented.db.policy("events").policy.delete_rate_limit, commented.db.policy("events").policy.pause) == (
        77,
        True,
    )
    commented.db.resume("events")
    comment(commented, ONE_DAY)
    assert commented.run(None).deleted == 1
    comment(commented, "just words")
    commented.run(None)
    assert commented.db.policies() == []


@pytest.mark.parametrize(
    "text",
    [
        f"{ONE_DAY}owner=ada;",
        "ttl_expiration_expression=ts + INTERVAL '1 day';owner=ada;",
        f"{ONE_DAY}ttl_job_cron=@daily;owner=ada;",
    ],
)
def test_reset_is_for_good(commented: Harness, text: str) -> None:
    comment(commented, text)
    assert commented.run(None).deleted == 1
    commented.insert((3, commented.at(days=-2)))
    commented.sql("ALTER TABLE events RESET (ttl)")
    assert comment_of(commented) == "owner=ada;"
    commented.run(None)
    assert commented.db.policies() == []
    assert commented.ids() == [2, 3]


def test_through_the_front_end_it_keeps_its_parameters_and_follows_the_comment(commented: Harness) -> None:
    commented.sql("SET GLOBAL lapse_trusted_owners = ''")
    commented.sql(statement(commented, f"{ONE_DAY}ttl_pause=on;ttl_delete_rate_limit=7;"))
    (stored,) = commented.db.policies()
    assert (stored.policy.pause, stored.policy.delete_rate_limit, stored.source) == (True, 7, "comment")
    assert commented.run(None).deleted == 0
    commented.sql(statement(commented, ONE_DAY))
    assert commented.db.policy("events").policy.delete_rate_limit is None
    assert commented.db.policy("events").policy.pause
    commented.sql(statement(commented, "words"))
    commented.run(None)
    assert commented.db.policies() == []


def test_a_statement_wins(commented: Harness) -> None:
    commented.sql("ALTER TABLE events SET (ttl_expiration_expression = 'ts + INTERVAL ''10 years''')")
    comment(commented, ONE_DAY)
    assert commented.run(None).deleted == 0
    assert commented.db.policy("events").source == "statement"


def test_a_comment_never_takes_the_managed_column_away(commented: Harness) -> None:
    commented.sql(statement(commented, "ttl_expire_after=1 day;"))
    commented.sql("UPDATE events SET crdb_internal_expiration = NULL WHERE id = 1")
    for text in (ONE_DAY, "just words", ""):
        comment(commented, text)
        commented.advance(days=3)
        assert not commented.run(None).complete
        assert commented.rows("SELECT id FROM events WHERE crdb_internal_expiration IS NULL") == [(1,)]
        (status,) = commented.db.status()
        assert (status.state, status.blocked) == ("blocked", "comment")
    assert commented.ids() == [1, 2]
    comment(commented, "ttl_expire_after=1 day;")
    commented.advance(days=3)
    assert commented.run(None).deleted == 1
    assert commented.ids() == [1]


def test_a_mistake_in_one_comment_is_that_tables_alone(commented: Harness) -> None:
    commented.sql(f"CREATE TABLE other (id {commented.backend.bigint} PRIMARY KEY, ts {commented.backend.instant})")
    commented.sql("ALTER TABLE other SET (ttl_expiration_expression = 'ts + INTERVAL ''1 day''')")
    commented.insert((1, commented.at(days=-2)), (2, commented.at()), table="other")
    comment(commented, "ttl_duration=60;ttl_col=nope;")
    result = commented.run(None)
    assert result.deleted == 1
    assert "does not exist" in result.skipped[0].reason
    assert commented.ids() == [1, 2]


def test_there_is_nothing_to_accept(commented: Harness) -> None:
    comment(commented, "just words")
    with pytest.raises(NotFound, match="proposes no policy"):
        commented.owner.accept("events")
