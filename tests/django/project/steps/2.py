from datetime import timedelta

from django.db import models

from lapse.contrib.django import Ttl


class Event(models.Model):
    created_at = models.DateTimeField(null=True, db_index=True)
    name = models.TextField(null=True)
    tag = models.CharField(max_length=20, default="none")
    ttl = Ttl(field="created_at", after="3 months", hide=True)


class Visit(models.Model):
    page = models.TextField(unique=False, null=True)
    ttl = Ttl(after=timedelta(hours=8), job_cron="@daily")


class Note(models.Model):
    day = models.DateField(null=True, db_index=True)
