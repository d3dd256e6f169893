"""`Model.live`: the rows that have not expired, by the very condition that deletes them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.db.models.expressions import Expression

if TYPE_CHECKING:
    from lapse.engines.base import BoundPolicy


class Expired(Expression):
    """True for the expired rows of a model, false for all others; a row whose expiry is NULL never expires.

    A column of the model goes along: by it the query's name for the table is found.
    """

    conditional = True
    output_field = models.BooleanField()

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.known: Any = models.F(model._meta.pk.name)

    def get_source_expressions(self) -> list[Any]:
        return [self.known]

    def set_source_expressions(self, expressions: list[Any]) -> None:
        (self.known,) = expressions

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:
        from lapse.engines.querying import expired_now

        quote = connection.ops.quote_name
        written, _ = compiler.compile(self.known)
        prefix = written.removesuffix(quote(self.model._meta.pk.column))

        def column_sql(name: str) -> str:
            return f"{prefix}{quote(name)}"

        declared = _declared(self.model, connection)
        sql = expired_now(connection.vendor, declared, datetime.now(UTC), column_sql)
        false = "false" if connection.vendor == "postgresql" else "0"
        return f"coalesce({sql}, {false})".replace("%", "%%"), []


class LiveManager(models.Manager):
    def get_queryset(self) -> Any:
        model = self.model
        if getattr(model._meta, "lapse_ttl", None) is None:
            raise ImproperlyConfigured(f"{model._meta.label} has no Ttl of its own, so all its rows are live")
        return super().get_queryset().filter(~models.Q(Expired(model)))


def _declared(model: Any, connection: Any) -> BoundPolicy:
    from lapse.model.table import Column, Table, TableKind, TableName
    from lapse.runner.policy_manager import bind

    columns = tuple(
        Column(name=field.column, type=(field.db_type(connection) or "").lower())
        for field in model._meta.local_concrete_fields
    )
    table = Table(name=TableName(model._meta.db_table), kind=TableKind.TABLE, columns=columns)
    policy = model._meta.lapse_ttl.entry(model, connection).policy
    assert policy is not None
    return bind(table, policy)
