"""Reading Python blocks out of pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.frame.doc_blocks import BadMark, Page, read_page

FENCE = "`" * 3


PageOf = Callable[[str], Page]


@pytest.fixture
def page_of(tmp_path: Path) -> PageOf:
    def write(text: str) -> Page:
        path = tmp_path / "page.md"
        path.write_text(text.replace("'''", FENCE))
        return read_page(path)

    return write


def test_a_block_without_a_mark_is_run(page_of: PageOf) -> None:
    page = page_of("text\n\n'''python\nx = 1\n'''\n")
    assert [(b.line, b.code, b.mark) for b in page.blocks] == [(4, ("x = 1",), "run")]


def test_a_mark_belongs_to_the_next_block_only(page_of: PageOf) -> None:
    page = page_of("<!-- test: compile -->\n\n'''python\nx\n'''\n\n'''python\ny\n'''\n")
    assert [b.mark for b in page.blocks] == ["compile", "run"]


def test_text_between_ends_a_mark(page_of: PageOf) -> None:
    page = page_of("<!-- test: compile -->\nText.\n'''python\nx\n'''\n")
    assert page.blocks[0].mark == "run"


def test_other_languages_are_left_alone_and_may_contain_fences(page_of: PageOf) -> None:
    page = page_of("'''sh\nls\n'''\n\n~~~markdown\n'''python\nnot me\n'''\n~~~\n\n'''python\nme\n'''\n")
    assert [b.code for b in page.blocks] == [("me",)]


def test_every_line_of_the_program_keeps_its_number(page_of: PageOf) -> None:
    page = page_of("# Page\n\n'''python\na = 1\n'''\n\nText.\n\n'''python\nb = a\nc = b\n'''\n")
    lines = page.program("run").splitlines()
    assert (lines[3], lines[9], lines[10]) == ("a = 1", "b = a", "c = b")


def test_blocks_of_other_marks_leave_blank_lines(page_of: PageOf) -> None:
    page = page_of("<!-- test: compile -->\n'''python\nno()\n'''\n\n'''python\nyes()\n'''\n")
    assert page.program("run").split() == ["yes()"]
    assert page.program("run", "compile").split() == ["no()", "yes()"]


def test_an_indented_block_loses_the_indent_of_its_fence(page_of: PageOf) -> None:
    page = page_of("- item\n\n    '''python\n    if x:\n        y\n    '''\n")
    assert page.blocks[0].code == ("if x:", "    y")


def test_hidden_setup_is_run_at_its_place(page_of: PageOf) -> None:
    page = page_of("<!-- test: setup\nx = 1\n-->\n\n'''python\ny = x\n'''\n")
    assert page.program("run").splitlines() == ["", "x = 1", "", "", "", "y = x"]


def test_a_page_says_once_that_it_needs_spark(page_of: PageOf) -> None:
    assert page_of("<!-- test: spark -->\n\n'''python\nx\n'''\n").needs_spark
    assert not page_of("'''python\nx\n'''\n").needs_spark


@pytest.mark.parametrize("mark", ["<!-- test: skip -->", "<!-- test: comple -->"])
def test_a_skip_without_reason_or_a_misspelt_mark_is_refused(page_of: PageOf, mark: str) -> None:
    with pytest.raises(BadMark):
        page_of(f"{mark}\n'''python\nx\n'''\n")
