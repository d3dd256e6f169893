"""RocksDB: a header before every value, expiry decided by Lapse alone, removal by real deletes."""
