"""`lapse doctor`: what is wrong with policies, tables and the database, and what can be repaired."""

from __future__ import annotations

from lapse.app.doctor.examine import Doctor
from lapse.app.doctor.finding import Finding, Level

__all__ = ["Doctor", "Finding", "Level"]
