"""Protobuf: message types, and rows of a row type out of Protobuf's bytes and into them."""
