"""Rolling aggregates over a moving horizon: ``hr.sum("cents", over="1h")``."""
