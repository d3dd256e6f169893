"""A commit whose answer never arrives has happened all the same: its rows are counted, once."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lapse.engines.base import Batch, Checkpoint, Deleter, Target
from lapse.errors import DatabaseUnavailable, Interrupted, LapseError
from lapse.model.job import JobStatus, KeyRange
from tests.conformance.harness import Harness


@dataclass
class Deaf(Deleter):
    """Does what it is asked to, and then fails as if it had not; the first few times."""

    inner: Deleter
    error: LapseError
    failures: list[Batch]

    def step(self, limit: int, checkpoint: Checkpoint) -> Batch:
        batch = self.inner.step(limit, checkpoint)
        if batch.deleted and not self.failures:
            self.failures.append(batch)
            raise self.error
        return batch

    def skip_one(self, checkpoint: Checkpoint) -> Batch:
        return self.inner.skip_one(checkpoint)

    def restart(self) -> None:
        self.inner.restart()


@pytest.mark.parametrize("error", [DatabaseUnavailable("gone"), Interrupted("killed")], ids=["lost", "interrupted"])
def test_a_commit_whose_answer_is_lost_is_counted_once(
    h: Harness, monkeypatch: pytest.MonkeyPatch, error: LapseError
) -> None:
    h.events()
    h.insert(*((number, h.at(days=-2)) for number in range(40)), (100, h.at()))
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 10, ttl_guard = 'off')")
    failures: list[Batch] = []
    deleter = h.db.engine.deleter

    def deaf(target: Target, span: KeyRange, cursor: str | None) -> Deleter:
        return Deaf(deleter(target, span, cursor), error, failures)

    monkeypatch.setattr(h.db.engine, "deleter", deaf)
    if isinstance(error, DatabaseUnavailable):
        with pytest.raises(DatabaseUnavailable):
            h.run()
    # Any other error is met again after a pause, by the same run.
    job = h.run_one()
    assert [batch.deleted for batch in failures] == [10]
    assert (job.status, job.counts.deleted) == (JobStatus.FINISHED, 40)
    assert h.ids() == [100]
