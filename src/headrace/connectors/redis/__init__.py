"""Redis streams as a source, Redis keys and streams as a sink."""
