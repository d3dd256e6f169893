"""Log lines on stderr, as text or JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer

from lapse.model.secret import mask
from lapse.runner.multi import DATABASE


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


LogFormatOption = Annotated[LogFormat, typer.Option(help="How log lines look, on stderr: text or json.")]


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        trace = self._trace(record)
        name = getattr(record, DATABASE.name, None)
        about = f"{name}: " if name else ""
        line = f"{_moment(record)} {record.levelname.lower():7} {about}{mask(record.getMessage())}"
        return f"{line}\n{trace}" if trace else line

    def _trace(self, record: logging.LogRecord) -> str:
        return mask(self.formatException(record.exc_info)) if record.exc_info else ""


class _JsonFormatter(_TextFormatter):
    def format(self, record: logging.LogRecord) -> str:
        trace = self._trace(record)
        fields = {"time": _moment(record), "level": record.levelname.lower(), "logger": record.name}
        if getattr(record, DATABASE.name, None):
            fields["database"] = getattr(record, DATABASE.name)
        fields |= {"message": mask(record.getMessage())} | ({"trace": trace} if trace else {})
        return json.dumps(fields, ensure_ascii=False)


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _note_database(record: logging.LogRecord) -> bool:
    """A worker for many databases says which one a line is about."""
    setattr(record, DATABASE.name, DATABASE.get())
    return True


def configure_logging(form: LogFormat, level: int) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if form is LogFormat.JSON else _TextFormatter())
    handler.addFilter(_note_database)
    root = logging.getLogger("lapse")
    root.handlers[:] = [handler]
    root.setLevel(level)
    root.propagate = False
