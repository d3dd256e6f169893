from datetime import timedelta

from django.db import models

from lapse.contrib.django import Ttl


class NoSuchField(models.Model):
    at = models.DateTimeField()
    ttl = Ttl(field="att", after=timedelta(days=1))


class NoIndex(models.Model):
    at = models.DateTimeField()
    live = models.BooleanField()
    ttl = Ttl(field="at", after=timedelta(days=1))


class NoTime(models.Model):
    at = models.CharField(max_length=20, db_index=True)
    ttl = Ttl(field="at", after=timedelta(days=1))


class OtherZone(models.Model):
    at = models.DateField(db_index=True)
    ttl = Ttl(field="at", after=timedelta(days=1), time_zone="Asia/Tokyo")


class NotManaged(models.Model):
    ttl = Ttl(after=timedelta(days=1))

    class Meta:
        managed = False


class Parent(models.Model):
    ttl = Ttl(after=timedelta(days=1))


class Child(Parent):
    ttl = Ttl(after=timedelta(days=1))
