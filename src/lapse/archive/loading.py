"""pyarrow, imported when it is needed: it is an optional part."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from lapse.errors import MissingExtra


def arrow(module: str = "") -> Any:
    """`pyarrow`, or a module of it by name; its types are Any, here and in this package only."""
    try:
        return import_module(f"pyarrow.{module}" if module else "pyarrow")
    except ImportError as error:
        raise MissingExtra("The archive in files (pyarrow)", "archive") from error
