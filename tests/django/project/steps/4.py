from datetime import timedelta

from django.db import models

from lapse.contrib.django import Ttl


class Event(models.Model):
    name = models.TextField(null=True)


class View(models.Model):
    address = models.TextField(null=True)
    ttl = Ttl(after=timedelta(hours=8), job_cron="@daily")


class Note(models.Model):
    day = models.DateField(null=True, db_index=True)
    ttl = Ttl(field="day", after=timedelta(days=7))
