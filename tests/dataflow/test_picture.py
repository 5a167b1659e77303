from __future__ import annotations

from xml.etree import ElementTree

import headrace as hr
from headrace.screens import epochs_html


class View(hr.Record):
    page: str
    n: int = 1


def make_app() -> tuple[hr.App, hr.types.Stream[View]]:
    app = hr.App("views")
    views = app.read("views", hr.source.items([View("a")]), View)
    totals = views.where("n < 5 AND page > 'a'").key_by(View.page).aggregate(total=hr.sum("n")).named("totals")
    totals.write(hr.sink.collect())
    return app, views


def boxes(html: str) -> list[str]:
    """The upper line of each box; the picture has to be well-formed."""
    svg = ElementTree.fromstring(html)[-1]
    return [group[2].text or "" for group in svg.iter("{http://www.w3.org/2000/svg}g")]


def test_a_notebook_shows_an_app_as_its_steps() -> None:
    app, _ = make_app()
    assert boxes(app._repr_html_()) == ["views", "where", "totals", "totals_collect"]


def test_a_notebook_shows_a_stream_as_what_leads_to_it() -> None:
    _, views = make_app()
    html = views.map(lambda row: row.page, output=str)._repr_html_()
    assert boxes(html) == ["views", "map"]
    assert html.count('stroke-width="2.5"') == 1


def test_an_app_without_steps_says_so() -> None:
    assert "no steps yet" in hr.App("empty")._repr_html_()


def test_names_are_escaped() -> None:
    app, _ = make_app()
    assert "<lambda>" not in app.read("more", hr.source.generator(lambda i, rng: View("a"), rate=1), View)._repr_html_()
    html = epochs_html("views", "failed: <b>a & b</b>", [])
    assert "failed: &lt;b&gt;a &amp; b&lt;/b&gt;" in html
    assert "no epoch was published yet" in html
