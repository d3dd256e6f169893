from datetime import timedelta

from django.db import models

from lapse.contrib.django import Ttl


class Kept(models.Model):
    """The TTL of an abstract model is that of its children."""

    created_at = models.DateTimeField(null=True, db_index=True)
    ttl = Ttl(field="created_at", after=timedelta(days=30), hide=True)

    class Meta:
        abstract = True


class Event(Kept):
    name = models.CharField(max_length=20)


class Visit(models.Model):
    page = models.CharField(max_length=20)
    ttl = Ttl(after=timedelta(hours=8), job_cron="@daily")


class Note(models.Model):
    day = models.DateField(null=True, db_index=True)
