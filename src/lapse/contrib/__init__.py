"""Lapse inside other tools: SQLAlchemy's metadata, Alembic's migrations, Django."""
