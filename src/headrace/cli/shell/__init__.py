"""The shell: statements read from a person, a file or a pipe, and their answers on a screen or as lines for machines.

`session` says what stands behind a shell; nothing else here knows whether that is a streaming program, a store or a
server.
"""
