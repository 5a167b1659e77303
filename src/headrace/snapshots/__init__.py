"""State as tables: SELECTs over one published epoch, by DuckDB."""
