"""Patterns outside of programs: as JSON, and as text."""

from headrace.patterns.declare import EventPattern
from headrace.patterns.notation.form import json_place, parse_json
from headrace.patterns.notation.text import parse_text


def parse_pattern(text: str, source: str) -> EventPattern:
    """The pattern of a text in either form. ``source``: what errors call it."""
    return parse_json(text, json_place(source)) if text.lstrip().startswith("{") else parse_text(text, source)
