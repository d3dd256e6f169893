"""What users write: tests in a transaction, and one without."""

from datetime import timedelta

from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.db import connection, models
from django.test import TestCase, TransactionTestCase
from django.utils import timezone

from lapse.contrib.django.testing import delete_expired
from shop.models import Event, Visit


def _events():
    now = timezone.now()
    ages = (None, timedelta(0), timedelta(days=29, hours=23), timedelta(days=30, hours=1), timedelta(days=99))
    for number, age in enumerate(ages, 1):
        Event.objects.create(id=number, name=str(number), created_at=None if age is None else now - age)


class LiveRows(TestCase):
    def setUp(self):
        _events()

    def test_live_leaves_expired_rows_out(self):
        self.assertEqual(Event._default_manager.name, "objects")
        self.assertEqual(Event.objects.count(), 5)
        self.assertEqual(list(Event.live.order_by("id").values_list("id", flat=True)), [1, 2, 3])
        self.assertEqual(
            list(Event.live.filter(name__in=Event.live.values("name")).filter(id__gt=2).values_list("id", flat=True)),
            [3],
        )
        same = Event.live.filter(id__in=models.Subquery(Event.live.filter(id=models.OuterRef("id")).values("id")))
        self.assertEqual(same.count(), 3)

    def test_what_the_worker_deletes(self):
        self.assertEqual(delete_expired(Event), 2)
        self.assertEqual(Event.objects.count(), 3)

    def test_the_managed_column(self):
        Visit.objects.create(page="a")
        self.assertEqual(Visit.live.count(), 1)
        with connection.cursor() as cursor:
            cursor.execute("UPDATE shop_visit SET crdb_internal_expiration = '2020-01-01 00:00:00'")
        self.assertEqual((Visit.live.count(), Visit.objects.count()), (0, 1))
        self.assertEqual(delete_expired(Visit), 1)

    def test_the_command_says_why_it_cannot_see_the_rows(self):
        with self.assertRaisesMessage(CommandError, "delete_expired"):
            call_command("lapse", "run")

    def test_the_admin_shows_and_only_those_who_may_act(self):
        user = User.objects.create_user("ann", password="x", is_staff=True)
        self.client.force_login(user)
        self.assertEqual(self.client.get("/admin/lapse/policy/").status_code, 403)
        user.user_permissions.add(Permission.objects.get(codename="view_policy"))
        page = self.client.get("/admin/lapse/policy/")
        self.assertEqual(page.status_code, 200)
        self.assertNotContains(page, "Pause")
        answer = self.client.post("/admin/lapse/policy/", {"database": "default", "table": "shop_event", "do": "pause"})
        self.assertEqual(answer.status_code, 403)


class Worker(TransactionTestCase):
    def test_it_deletes_what_is_committed(self):
        _events()
        if connection.vendor == "sqlite":
            with self.assertRaisesMessage(CommandError, "in memory"):
                call_command("lapse", "status")
            return
        call_command("lapse", "run", "--table", "shop_event", "--yes")
        self.assertEqual(Event.objects.count(), 3)
        ann = User.objects.create_user("ann", password="x", is_staff=True)
        ann.user_permissions.set(Permission.objects.filter(content_type__app_label="lapse"))
        self.client.force_login(ann)
        self.assertContains(self.client.get("/admin/lapse/policy/"), "30 days after created_at")
        table = "public.shop_event"
        page = self.client.post(
            "/admin/lapse/policy/", {"database": "default", "table": table, "do": "pause"}, follow=True
        )
        self.assertContains(page, "is paused")
        self.assertContains(page, "Resume")
        page = self.client.post(
            "/admin/lapse/policy/", {"database": "default", "table": table, "do": "resume"}, follow=True
        )
        self.assertContains(page, "goes on")
        page = self.client.post("/admin/lapse/policy/", {"database": "default", "table": "x", "do": "run"}, follow=True)
        self.assertContains(page, "has no TTL policy")
