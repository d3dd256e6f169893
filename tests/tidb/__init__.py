"""TiDB, whose own TTL Lapse declares, switches on and follows."""
