"""`manage.py lapse …`: the command line of Lapse on one of Django's databases."""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS, connections

from lapse.cli import main
from lapse.cli.opening import ENVIRONMENT
from lapse.contrib.django.database import url_of
from lapse.errors import LapseError


class Command(BaseCommand):
    help = (
        "Row-level TTL on Django's databases: run, worker, status, preview, doctor, … as the command `lapse` has them."
    )
    requires_system_checks: list[str] = []

    def run_from_argv(self, argv: list[str]) -> None:
        """Options of the command line of Lapse are its own business, but for --database."""
        own, rest = _split(argv[2:])
        super().run_from_argv([*argv[:2], *own, "--", *rest])

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="Which of DATABASES; 'default' without it.")
        parser.add_argument("arguments", nargs=REMAINDER, help="A command of Lapse with its options; none lists them.")

    def handle(self, *args: Any, **options: Any) -> None:
        arguments = [each for each in options["arguments"] if each != "--"]
        if options["database"] not in connections:
            raise CommandError(f"there is no database {options['database']!r} in DATABASES")
        connection = connections[options["database"]]
        if connection.in_atomic_block:
            raise CommandError(
                "a transaction is open, and Lapse, which has connections of its own, does not see what is written in "
                "it. In tests use lapse.contrib.django.testing.delete_expired, or a TransactionTestCase"
            )
        before = os.environ.get(ENVIRONMENT)
        try:
            os.environ[ENVIRONMENT] = url_of(connection)
            code = main(arguments)
        except LapseError as error:
            raise CommandError(error.message) from error
        finally:
            if before is None:
                os.environ.pop(ENVIRONMENT, None)
            else:
                os.environ[ENVIRONMENT] = before
        if code:
            sys.exit(code)


DJANGOS = ("--database", "--settings", "--pythonpath")
"""Options with a value that are not Lapse's."""


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    own: list[str] = []
    rest: list[str] = []
    waiting = iter(arguments)
    for each in waiting:
        if each in DJANGOS:
            own += [each, *[value for value in (next(waiting, None),) if value is not None]]
        elif each.startswith(tuple(f"{name}=" for name in DJANGOS)):
            own.append(each)
        else:
            rest.append(each)
    return own, rest
