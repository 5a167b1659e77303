"""The console as a sink."""
