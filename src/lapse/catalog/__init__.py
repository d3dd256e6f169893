"""Lapse's own tables inside the user's database."""

from __future__ import annotations

from lapse.catalog.catalog import Catalog

__all__ = ["Catalog"]
