"""TTL in Django: `Ttl` on a model, migrations, `Model.live`, checks, `manage.py lapse` and a page in the admin.

INSTALLED_APPS += ["lapse.contrib.django"]

class Event(models.Model):
    created_at = models.DateTimeField(db_index=True)
    ttl = Ttl(field="created_at", after=timedelta(days=30))
"""

from __future__ import annotations

from lapse.contrib.django.ttl import Ttl

__all__ = ["Ttl"]
