"""Has every table a policy in the file, or a reason for having none?"""

from __future__ import annotations

from sqlalchemy import Connection

from lapse.app.policyfile.plan import Problem
from lapse.app.policyfile.reading import PolicyFile
from lapse.ddl.names import parse_table_name
from lapse.engines.base import Engine
from lapse.errors import LapseError


def lint(engine: Engine, connection: Connection, file: PolicyFile) -> list[Problem]:
    """Tables without a word about them in the file, and entries without a table."""
    problems: list[Problem] = []
    left = set(engine.tables(connection))
    for entry in file.tables:
        try:
            name = parse_table_name(entry.name, engine.dialect)
            left.discard(engine.describe(connection, name).name)
        except LapseError as error:
            problems.append(Problem(table=entry.name, place=entry.place, text=error.message))
    silent = "has neither a policy nor a reason for having none"
    return problems + [Problem(table=str(name), place=file.path.name, text=silent) for name in sorted(left)]
