"""Rows given or made by the program itself, and sinks inside the driver."""
