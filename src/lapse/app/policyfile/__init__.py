"""Policies as code: `lapse.toml` read, compared with a database, written for one."""

from __future__ import annotations

from lapse.app.policyfile.candidates import SuggestedPolicy, find_candidate
from lapse.app.policyfile.linting import lint
from lapse.app.policyfile.plan import Change, ChangeKind, ExpectedFirstRun, FieldChange, Plan, Planner, Problem
from lapse.app.policyfile.reading import (
    FILE_NAME,
    DatabaseEntry,
    PolicyFile,
    TableEntry,
    entry_from_keys,
    read_databases,
    read_file,
)
from lapse.app.policyfile.schema import json_schema
from lapse.app.policyfile.writing import write_file

__all__ = [
    "FILE_NAME",
    "Change",
    "ChangeKind",
    "DatabaseEntry",
    "ExpectedFirstRun",
    "FieldChange",
    "Plan",
    "Planner",
    "PolicyFile",
    "Problem",
    "SuggestedPolicy",
    "TableEntry",
    "entry_from_keys",
    "find_candidate",
    "json_schema",
    "lint",
    "read_databases",
    "read_file",
    "write_file",
]
