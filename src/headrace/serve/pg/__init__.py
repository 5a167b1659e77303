"""State over Postgres' protocol, for psql, drivers and dashboards."""
