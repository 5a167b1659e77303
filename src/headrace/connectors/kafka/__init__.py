"""Kafka topics, read through Spark and written with transactions."""
