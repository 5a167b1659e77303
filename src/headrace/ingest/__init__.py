"""The embedded log: events that are sent over HTTP, durable before they are answered, and read again by jobs.

`layout` and `frames` are the format (docs/formats/log.md), `reading` is what a source needs of it. Writing is
`partition` (one file at a time), `log` (all of them, and the keys of requests) and `committing` (one fsync for all who
wait). `bodies`, `app` and `serving` are HTTP.
"""
