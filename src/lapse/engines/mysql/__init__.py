"""MariaDB and MySQL, and the TTL that MyRocks has of its own."""
