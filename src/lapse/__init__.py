"""Row-level TTL for the database you already run."""
