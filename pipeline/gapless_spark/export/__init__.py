"""The export job: the log into a folder of Parquet files, a Delta table or an Iceberg table, exactly once."""
