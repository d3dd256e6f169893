"""Policies: what may be set, what replaces what, and how they are stored."""

from __future__ import annotations

import pytest

from lapse.errors import InvalidValue, PolicyConflict
from lapse.model import interval, parameters
from lapse.model.policy import ColumnExpiry, ExpressionExpiry, PartitionRule, Policy, PolicyChange, removed_by_reset
from lapse.model.table import MANAGED_COLUMN

DAY = interval.parse("1 day")
HOUR = interval.parse("1 hour")


def test_a_policy_says_when_rows_expire() -> None:
    with pytest.raises(PolicyConflict, match="when rows expire"):
        Policy()
    with pytest.raises(PolicyConflict, match="keep one"):
        Policy(expression="a", column="b", interval=DAY)
    with pytest.raises(PolicyConflict, match="keep one"):
        Policy(expire_after=DAY, job_cron="@daily", job_interval=DAY)


def test_which_expiry_decides() -> None:
    managed = Policy(expire_after=DAY)
    assert managed.expiry == ColumnExpiry(column=MANAGED_COLUMN, after=interval.Interval())
    assert Policy(expire_after=DAY, expression="x").expiry == ExpressionExpiry(text="x")
    assert Policy(column="c", interval=HOUR).expiry == ColumnExpiry(column="c", after=HOUR)


def test_json_keeps_every_value() -> None:
    policy = Policy(
        column="created at",
        interval=interval.parse("3 months"),
        delete_batch_size=7,
        pause=True,
        job_interval=HOUR,
        adaptive=False,
        time_zone="Europe/Berlin",
        hide_expired="view",
        partitions=(PartitionRule(partition="p1", after=HOUR, column="c"),),
    )
    assert Policy.from_json(policy.to_json()) == policy
    assert Policy.from_json(Policy(expire_after=DAY).to_json()).options() == {"expire_after": "1 day"}


def test_changes() -> None:
    start = Policy(expire_after=DAY, job_cron="@daily")
    changed = PolicyChange(set={"job_interval": HOUR}).apply_to(start, "t")
    assert changed is not None
    assert (changed.job_cron, changed.job_interval) == (None, HOUR)
    changed = PolicyChange(set={"expression": "x"}).apply_to(Policy(column="c", interval=DAY), "t")
    assert changed is not None
    assert (changed.column, changed.expression) == (None, "x")
    assert PolicyChange(set={}, remove=True).apply_to(start, "t") is None
    with pytest.raises(PolicyConflict, match="ttl_pause"):
        PolicyChange(set={"pause": True}).apply_to(None, "t")
    with pytest.raises(PolicyConflict):
        PolicyChange(set={}, reset=frozenset({"expire_after"})).apply_to(start, "t")


def test_resetting_the_expression_resets_what_it_was_read_as() -> None:
    assert removed_by_reset(["ttl_expiration_expression"]) == {"expression", "column", "interval"}
    with pytest.raises(InvalidValue, match="ttl_nonsense"):
        removed_by_reset(["ttl_nonsense"])


def test_same_expiry_ignores_parameters_and_sees_the_rest() -> None:
    policy = Policy(column="c", interval=DAY)
    assert policy.same_expiry(Policy(column="c", interval=DAY, delete_batch_size=9, pause=True))
    assert not policy.same_expiry(Policy(column="c", interval=HOUR))
    assert not policy.same_expiry(Policy(column="c", interval=DAY, time_zone="Asia/Tokyo"))


@pytest.mark.parametrize("parameter", list(parameters.PARAMETERS.values()), ids=lambda parameter: parameter.name)
def test_every_default_is_a_value_its_parameter_accepts(parameter: parameters.Parameter) -> None:
    if parameter.default:
        assert parameters.write(parameter.parse(parameter.default, parameter.name)) == parameter.default


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ttl_select_batch_size", "0"),
        ("ttl_delete_batch_size", "many"),
        ("ttl_delete_rate_limit", "-1"),
        ("ttl_row_stats_poll_interval", "10 ms"),
        ("ttl_job_cron", "61 * * * *"),
        ("ttl_job_cron", "* * * * * *"),
        ("ttl_pause", "maybe"),
        ("ttl", "off"),
        ("ttl_time_zone", "Mars/Olympus"),
        ("ttl_time_zone", "../../etc/passwd"),
        ("ttl_time_format", "fortnights"),
        ("ttl_hide_expired", "sometimes"),
        ("ttl_delete_within", "0 days"),
        ("ttl_expiration_expression", "  "),
    ],
)
def test_values_out_of_range_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(InvalidValue, match=name):
        parameters.find(name).parse(value, name)
