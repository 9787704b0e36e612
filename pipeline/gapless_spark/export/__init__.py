"""The export job: writes the log to a folder of Parquet files, a Delta or an Iceberg table, exactly once."""
