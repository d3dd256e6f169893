"""SlateDB: the same header as on RocksDB decides reads; the engine is told a later expiry and purges by
compaction."""
