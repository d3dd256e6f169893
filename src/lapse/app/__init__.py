"""The application: the only place that wires everything together."""

from __future__ import annotations

from lapse.app.background import Background
from lapse.app.doctor import Finding, Level
from lapse.app.facade import Lapse
from lapse.app.forecast import Forecast
from lapse.app.health import PolicyHealth
from lapse.app.observer import HISTORY_LIMIT, Observation
from lapse.app.policyfile import Plan, PolicyFile, Problem, read_file
from lapse.app.preview import Preview
from lapse.app.progress import JobProgress
from lapse.app.result import Result, Stream
from lapse.app.session import Session
from lapse.app.status import TableStatus
from lapse.ddl import CONVERT_TARGETS, ConvertResult, convert
from lapse.runner.comments import CommentProblem
from lapse.runner.events import Listener
from lapse.runner.promise import Health
from lapse.runner.worker import RunResult

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
