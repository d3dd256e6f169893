"""Events and their notices, as stored: an event lasts once in the whole fleet, a notice is sent by one worker."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, and_, delete, exists, insert, or_, select, update

from lapse.catalog.schema import event, notice
from lapse.model.notice import Event, EventKind, Notice, NoticeState


def lasting_events(connection: Connection) -> list[Event]:
    query = select(event).where(event.c.open_key.is_not(None)).order_by(event.c.began_at, event.c.event_id)
    return [_event(row) for row in connection.execute(query)]


def begin_event(connection: Connection, begun: Event) -> None:
    connection.execute(
        insert(event).values(
            event_id=begun.id,
            open_key=begun.key,
            kind=str(begun.kind),
            policy_id=begun.policy_id,
            table_name=begun.table,
            code=begun.code,
            reason=begun.reason,
            began_at=begun.began_at,
        )
    )


def clear_event(connection: Connection, cleared: Event, now: datetime, *, send_at: datetime) -> None:
    """The receivers that are told of its beginning are told of its end."""
    connection.execute(update(event).where(event.c.event_id == cleared.id).values(open_key=None, cleared_at=now))
    told = select(notice.c.receiver).where(notice.c.event_id == cleared.id, notice.c.state == str(NoticeState.BEGAN))
    for receiver in connection.execute(told).scalars().all():
        _add_notice(connection, cleared.id, NoticeState.CLEARED, receiver, send_at)


def untold(connection: Connection, receivers: Collection[str]) -> list[tuple[str, str]]:
    """Lasting events that a receiver has no notice of: (event id, receiver)."""
    query = (
        select(event.c.event_id, notice.c.receiver)
        .outerjoin(notice, and_(notice.c.event_id == event.c.event_id, notice.c.state == str(NoticeState.BEGAN)))
        .where(event.c.open_key.is_not(None))
    )
    known: dict[str, set[str]] = {}
    for event_id, receiver in connection.execute(query):
        known.setdefault(str(event_id), set()).add(receiver)
    return [(event_id, each) for event_id, told in known.items() for each in receivers if each not in told]


def add_notice(connection: Connection, event_id: str, receiver: str, now: datetime) -> None:
    """Tell a receiver that an event has begun."""
    _add_notice(connection, event_id, NoticeState.BEGAN, receiver, now)


def _add_notice(connection: Connection, event_id: str, state: NoticeState, receiver: str, now: datetime) -> None:
    connection.execute(
        insert(notice).values(
            event_id=event_id, state=str(state), receiver=receiver, created_at=now, not_before=now, attempts=0
        )
    )


def due_notices(connection: Connection, receivers: Collection[str], now: datetime, limit: int) -> list[Notice]:
    """Those to send now, the longest waiting first; the end of an event waits until its beginning was sent."""
    first = notice.alias()
    began_unsent = exists().where(
        first.c.event_id == notice.c.event_id,
        first.c.receiver == notice.c.receiver,
        first.c.state == str(NoticeState.BEGAN),
        first.c.sent_at.is_(None),
    )
    query = (
        select(notice, event)
        .join(event, event.c.event_id == notice.c.event_id)
        .where(
            notice.c.sent_at.is_(None),
            notice.c.not_before <= now,
            notice.c.receiver.in_(list(receivers)),
            or_(notice.c.state == str(NoticeState.BEGAN), ~began_unsent),
        )
        .order_by(notice.c.not_before, event.c.began_at)
        .limit(limit)
    )
    return [
        Notice(event=_event(row), state=NoticeState(row.state), receiver=row.receiver, attempts=row.attempts)
        for row in connection.execute(query)
    ]


def claim_notice(connection: Connection, wanted: Notice, until: datetime) -> bool:
    """Keep other workers from sending it before `until`; False if one was faster."""
    changed = connection.execute(
        update(notice)
        .where(*_is(wanted), notice.c.sent_at.is_(None), notice.c.attempts == wanted.attempts)
        .values(attempts=wanted.attempts + 1, not_before=until)
    )
    return changed.rowcount == 1


def finish_notice(connection: Connection, sent: Notice, now: datetime) -> None:
    connection.execute(update(notice).where(*_is(sent)).values(sent_at=now, last_error=None))


def postpone_notice(connection: Connection, failed: Notice, error: str, until: datetime) -> None:
    """One that another worker has claimed since, or sent, is left to that one."""
    connection.execute(
        update(notice)
        .where(*_is(failed), notice.c.sent_at.is_(None), notice.c.attempts == failed.attempts + 1)
        .values(last_error=error, not_before=until)
    )


def forget_events(connection: Connection, *, cleared_before: datetime) -> None:
    """Those that were over by then, with their notices, sent or not."""
    old = select(event.c.event_id).where(event.c.cleared_at < cleared_before)
    connection.execute(delete(notice).where(notice.c.event_id.in_(old)))
    connection.execute(delete(event).where(event.c.cleared_at < cleared_before))


def _is(wanted: Notice) -> tuple[Any, ...]:
    return (
        notice.c.event_id == wanted.event.id,
        notice.c.state == str(wanted.state),
        notice.c.receiver == wanted.receiver,
    )


def _event(row: Row[Any]) -> Event:
    found = row._mapping
    return Event(
        id=found[event.c.event_id],
        kind=EventKind(found[event.c.kind]),
        policy_id=found[event.c.policy_id],
        table=found[event.c.table_name],
        code=found[event.c.code],
        reason=found[event.c.reason],
        began_at=found[event.c.began_at],
        cleared_at=found[event.c.cleared_at],
    )
