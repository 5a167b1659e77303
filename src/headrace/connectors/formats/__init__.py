"""Binary formats of messages and files: Avro and Protobuf, from bytes to columns and back, and the schema registry."""
