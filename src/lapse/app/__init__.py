"""The application: the only place that wires everything together."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lapse.app.background import Background
    from lapse.app.doctor import Finding, Level
    from lapse.app.facade import Lapse
    from lapse.app.forecast import Forecast
    from lapse.app.health import PolicyHealth
    from lapse.app.observation import HISTORY_LIMIT, Observation
    from lapse.app.policyfile import Plan, PolicyFile, Problem, read_file
    from lapse.app.preview import Preview
    from lapse.app.progress import JobProgress
    from lapse.app.result import Result, Stream
    from lapse.app.session import Session
    from lapse.app.status import TableStatus
    from lapse.ddl.convert import CONVERT_TARGETS, ConvertResult, convert
    from lapse.runner.comments import CommentProblem
    from lapse.runner.events import Listener
    from lapse.runner.promise import Health
    from lapse.runner.worker import RunResult

_MODULES = {
    "Background": "lapse.app.background",
    "CONVERT_TARGETS": "lapse.ddl.convert",
    "CommentProblem": "lapse.runner.comments",
    "ConvertResult": "lapse.ddl.convert",
    "Finding": "lapse.app.doctor",
    "Forecast": "lapse.app.forecast",
    "HISTORY_LIMIT": "lapse.app.observation",
    "Health": "lapse.runner.promise",
    "JobProgress": "lapse.app.progress",
    "Lapse": "lapse.app.facade",
    "Level": "lapse.app.doctor",
    "Listener": "lapse.runner.events",
    "Observation": "lapse.app.observation",
    "Plan": "lapse.app.policyfile",
    "PolicyFile": "lapse.app.policyfile",
    "PolicyHealth": "lapse.app.health",
    "Preview": "lapse.app.preview",
    "Problem": "lapse.app.policyfile",
    "Result": "lapse.app.result",
    "RunResult": "lapse.runner.worker",
    "Session": "lapse.app.session",
    "Stream": "lapse.app.result",
    "TableStatus": "lapse.app.status",
    "convert": "lapse.ddl.convert",
    "read_file": "lapse.app.policyfile",
}
"""A name brings along what it needs, and no more: `lapse sql` loads neither the runner nor the doctor."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'lapse.app' has no attribute {name!r}")


__all__ = [
    "CONVERT_TARGETS",
    "HISTORY_LIMIT",
    "Background",
    "CommentProblem",
    "ConvertResult",
    "Finding",
    "Forecast",
    "Health",
    "JobProgress",
    "Lapse",
    "Level",
    "Listener",
    "Observation",
    "Plan",
    "PolicyFile",
    "PolicyHealth",
    "Preview",
    "Problem",
    "Result",
    "RunResult",
    "Session",
    "Stream",
    "TableStatus",
    "convert",
    "read_file",
]
