"""A model without a table: it stands for the policies in the admin, and carries the permissions."""

from __future__ import annotations

from django.db import models


class Policy(models.Model):
    class Meta:
        managed = False
        default_permissions = ("view",)
        permissions = (("control_policy", "Can run, pause and resume TTL"),)
        verbose_name = "TTL policy"
        verbose_name_plural = "TTL policies"
