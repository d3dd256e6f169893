"""Which zone the application's sessions have: by the server, the database or a role; not by Lapse's own session."""

from __future__ import annotations

from sqlalchemy import Connection

from lapse.engines.base import BoundPolicy
from lapse.engines.postgres import condition
from lapse.engines.zones import is_utc

# A session starts with the role's setting in this database, else the database's, the role's, the server's. Lapse does
# not know the application's role, so each of them counts.
_ZONES = """
    SELECT zone FROM (
        SELECT reset_val AS zone, 0 AS place FROM pg_catalog.pg_settings WHERE name = 'TimeZone'
         UNION ALL
        SELECT substr(each, strpos(each, '=') + 1), CASE WHEN s.setrole = 0 THEN 1 ELSE 2 END
          FROM pg_catalog.pg_db_role_setting s CROSS JOIN LATERAL unnest(s.setconfig) each
         WHERE s.setdatabase IN (0, (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()))
           AND each ILIKE 'timezone=%%') found
     ORDER BY place, zone"""


def in_doubt(connection: Connection, declared: BoundPolicy) -> str | None:
    """A zone in which the times could be meant: the policy reads some without a zone, does not say which, and it is not
    plainly UTC."""
    if declared.policy.time_zone is not None or not condition.reads_wall_clock(declared):
        return None
    found = [str(row[0]) for row in connection.exec_driver_sql(_ZONES, {})]
    return next((zone for zone in found if not is_utc(zone)), None)
