"""A Django project with TTL: its migrations there and back on every database, its tests, its checks, its commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import lapse
from tests.conftest import Servers
from tests.django.manage import Project, run_python

pytest.importorskip("django")
SLOW = pytest.mark.slow
"""`make django` runs these as well."""
DATABASES = ("sqlite", "postgres15", pytest.param("mariadb", marks=SLOW), pytest.param("mysql", marks=SLOW))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with all its migrations, as makemigrations and one person have written them."""
    project = Project(tmp_path_factory.mktemp("django"), {"default": "sqlite:///unused.db"})
    for step, name in ((1, "0001_step"), (2, "0002_step"), (4, "0004_step")):
        project.models(step)
        project.run("makemigrations", "shop", "--name", "step", "--noinput")
        assert project.migration(name)
        if step == 2:
            handwritten = (project.folder / "steps" / "0003_view.py").read_text()
            (project.folder / "shop" / "migrations" / "0003_view.py").write_text(handwritten)
    return project


def test_makemigrations_sees_ttl_come_change_and_go(written: Project) -> None:
    first, second, last = (written.migration(name) for name in ("0001_step", "0002_step", "0004_step"))
    assert first.count("SetTtl") == 2
    assert "hide=True" in first
    assert "lapse_ttl" not in first, "the option is no part of what creates the model"
    assert second.count("SetTtl") == 1, "a policy that did not change is not set again"
    assert "after='3 months'" in second
    assert last.index("RemoveTtl") < last.index("RemoveField"), "the policy goes before the column that it reads"
    assert "model_name='Note'" in last
    assert "No changes detected" in written.run("makemigrations", "--check", "--dry-run")


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, servers: Servers) -> Iterator[str]:
    backend = servers.get(request.param)
    url = backend.create()
    yield url
    backend.drop(url)


def test_there_and_back(written: Project, url: str) -> None:
    written.urls = {"default": url}
    written.run("migrate", "shop", "0001")
    with lapse.open(url) as db:
        assert _policies(db) == {"shop_event": "30 days", "shop_visit": "8 hours"}
        db.execute("INSERT INTO shop_visit (page) VALUES ('a')")
        db.execute("INSERT INTO shop_event (created_at, name) VALUES ('2020-01-01 00:00:00', 'old'), (NULL, 'never')")
        stamps = db.execute("SELECT crdb_internal_expiration FROM shop_visit").rows
        assert db.execute("SELECT name FROM shop_event_live").rows == (("never",),)
        written.run("migrate", "shop", "0003")
        assert _policies(db) == {"shop_event": "3 months", "shop_view": "8 hours"}
        assert db.execute("SELECT crdb_internal_expiration FROM shop_view").rows == stamps, "times survive"
        assert db.execute("SELECT * FROM shop_event_live").columns == ("id", "created_at", "name")
        db.execute("INSERT INTO shop_view (address) VALUES ('b')")
        assert db.execute("SELECT count(crdb_internal_expiration) FROM shop_view").rows == ((2,),), "rows are stamped"
        assert {part.promise.health.words for health in db.health() for part in health.parts} == {"on time"}
        assert db.run("shop_event", confirm=True).deleted == 1
        assert db.run("shop_view", confirm=True).complete
        written.run("migrate", "shop")
        assert _policies(db) == {"shop_note": "7 days", "shop_view": "8 hours"}
        assert db.policy("shop_note").policy.time_zone == "Europe/Berlin", "dates are Django's days"
        written.run("migrate", "shop", "0001")
        assert _policies(db) == {"shop_event": "30 days", "shop_visit": "8 hours"}
        if db.engine.features.row_locks:
            return
        written.run("migrate", "shop", "zero")
        assert _policies(db) == {}


def _policies(db: lapse.Lapse) -> dict[str, str]:
    return {stored.table.name: str(stored.policy.interval or stored.policy.expire_after) for stored in db.policies()}


@pytest.fixture
def project(written: Project, tmp_path: Path) -> Project:
    """At its first step, migrated nowhere."""
    found = Project(tmp_path, {"default": f"sqlite:///{tmp_path}/app.db"})
    found.models(1)
    (found.folder / "shop" / "migrations" / "0001_step.py").write_text(written.migration("0001_step"))
    return found


def test_tests_of_users_run_in_memory(project: Project) -> None:
    assert "OK" in project.run("test", "shop")


@SLOW
def test_tests_of_users_run_under_pytest(project: Project) -> None:
    arguments = ("-p", "no:cacheprovider", "--ds", "site_settings", "shop/tests.py", "-q")
    said = run_python(project.folder, "-m", "pytest", *arguments, DATABASE_URLS=json.dumps(project.urls))
    assert "6 passed" in said


@SLOW
def test_tests_of_users_keep_their_database(project: Project, servers: Servers) -> None:
    backend = servers.get("postgres15")
    project.urls = {"default": backend.create()}
    for _ in range(2):
        assert "OK" in project.run("test", "shop", "--keepdb", "--noinput")


def test_checks_name_what_cannot_work(project: Project) -> None:
    project.models("bad")
    said = project.run("check", code=1)
    for words in (
        "shop.NoSuchField: (lapse.E003) Ttl refers to the field 'att'",
        "shop.NoIndex: (lapse.W001) No index begins with 'at'",
        "shop.NoIndex: (lapse.W003)",
        "shop.NoTime: (lapse.E004)",
        "shop.OtherZone: (lapse.E006) Ttl reads its times in Asia/Tokyo, but Django writes them in Europe/Berlin",
        "shop.NotManaged: (lapse.E001)",
        "shop.Child: (lapse.E002)",
        "shop.Parent: (lapse.W004)",
    ):
        assert words in said


@SLOW
def test_the_command_line_on_several_databases(project: Project, servers: Servers) -> None:
    project.urls["other"] = servers.get("postgres15").create()
    assert "ttl_expire_after = '8 hours'" in project.run("sqlmigrate", "shop", "0001")
    project.run("migrate", "--database", "other", WITH_SESSIONS="1")
    found = json.loads(project.run("lapse", "status", "--json", "--database", "other"))
    assert {each["table"] for each in found} == {"shop_event", "shop_visit", "django_session"}
    assert "no TTL policy was ever declared" in project.run("lapse", "status", code=1), "in the default one"
    project.run("migrate", "--database", "other")
    with lapse.open(project.urls["other"]) as db:
        assert "django_session" not in _policies(db), "what is no longer in LAPSE_TTL is removed"
