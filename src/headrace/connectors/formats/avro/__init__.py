"""Avro: schemas, and rows of a row type out of Avro's bytes and into them."""
