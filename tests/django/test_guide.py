"""A project that is started by the text of the guide alone."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import lapse
from tests.django.manage import run_python

pytest.importorskip("django")
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "django.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_guide_leads_to_a_project_with_ttl(tmp_path: Path) -> None:
    said = {}
    for language, block in _BLOCK.findall(GUIDE.read_text(encoding="utf-8")):
        if language == "python":
            name = re.match(r"# (\S+)\n", block)
            assert name is not None, block
            with (tmp_path / name[1]).open("a" if "settings" in name[1] else "w", encoding="utf-8") as file:
                file.write(block)
            continue
        for command in re.findall(r"^\$ (.+)$", block, re.MULTILINE):
            words = shlex.split(command)
            program = ["-m", "django", *words[1:]] if words[0] == "django-admin" else words[1:]
            said[command] = run_python(tmp_path, *program)
    assert "Set the TTL of Event" in said["python manage.py makemigrations shop"]
    assert "no issues" in said["python manage.py check"]
    assert "OK" in said["python manage.py test shop"]
    assert "django_session" in said["python manage.py lapse status"]
    with lapse.open(f"sqlite:///{tmp_path / 'db.sqlite3'}") as db:
        assert {stored.table.name for stored in db.policies()} == {
            "shop_event",
            "shop_cart",
            "django_session",
            "django_admin_log",
        }
