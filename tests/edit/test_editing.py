"""Every kind of state, edited: the job goes on with what was set, and what does not fit changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import headrace as hr
from headrace.edit.editor import Editor
from headrace.errors import ProgramError, StoreError
from tests.edit.kinds import Card, Fraud, Rule, Sale, Shop


@pytest.fixture
def shop() -> Iterator[Shop]:
    shop = Shop()
    with shop.h:
        shop.h.push(shop.rules, Rule("tea", 1.5))
        shop.sell(("ann", "tea", 10), ("ann", "hat", 20), ("bob", "tea", 5))
        yield shop


def test_a_job_goes_on_with_values_that_were_set(shop: Shop) -> None:
    with shop.h.edit() as edit:
        edit.set("fraud.total", "ann", 1_000)
        edit.set("fraud.total", "cid", 7)
        edit.delete("fraud.total", "bob")
    assert edit.epoch == 1
    shop.sell(("ann", "tea", 1), ("bob", "tea", 1), ("cid", "tea", 1))
    assert [shop.state(Fraud.total, each) for each in ("ann", "bob", "cid")] == [1_001, 1, 8]


def test_records_are_set_as_python_has_them_and_patched_by_field(shop: Shop) -> None:
    with shop.h.edit() as edit:
        edit.set("fraud.card", "ann", Card("visa", 5))
        edit.set("fraud.card", "bob", {"name": "amex"})
        edit.patch("fraud.card", "ann", {"limit": 9, "since": "2024-05-01T12:00"})
    assert shop.state(Fraud.card) == Card("visa", 9, hr.Timestamp(1_714_564_800_000_000))
    assert shop.state(Fraud.card, "bob") == Card("amex", 100)


def test_entries_of_a_map_are_set_patched_and_deleted_alone_or_all_together(shop: Shop) -> None:
    with shop.h.edit() as edit:
        edit.set("fraud.shops", "ann", 7, entry="tea")
        edit.delete("fraud.shops", "ann", entry="hat")
        edit.patch("fraud.shops", "ann", {"pie": 2, "gin": 3})
        edit.patch("fraud.shops", "ann", {"gin": None})
        edit.set("fraud.shops", "bob", {"oil": 1})
        edit.set("fraud.seen", "ann", {"2024-05-01T12:00:00Z": {"name": "visa"}})
    assert shop.state(Fraud.shops) == {"pie": 2, "tea": 7}
    assert shop.state(Fraud.shops, "bob") == {"oil": 1}
    assert shop.state(Fraud.seen) == {1_714_564_800_000_000: Card("visa")}
    shop.sell(("bob", "tea", 1))
    assert shop.state(Fraud.shops, "bob") == {"oil": 1, "tea": 1}
    with shop.h.edit() as edit:
        edit.delete("fraud.shops", "bob")
    assert shop.state(Fraud.shops, "bob") is None


def test_lists_are_set_appended_to_and_changed_by_element(shop: Shop) -> None:
    at = shop.h.at("12:00")
    with shop.h.edit() as edit:
        edit.append("fraud.recent", "ann", Sale("ann", "pie", 3, at))
        edit.set("fraud.recent", "ann", Sale("ann", "tea", 11, at), entry=0)
        edit.delete("fraud.recent", "ann", entry=-2)
        edit.set("fraud.recent", "bob", [{"customer": "bob", "shop": "x", "cents": 1, "at": "2024-01-01T12:00"}])
    shop.sell(("ann", "gin", 4))
    assert [(sale.shop, sale.cents) for sale in shop.state(Fraud.recent)] == [("tea", 11), ("pie", 3), ("gin", 4)]
    assert shop.state(Fraud.recent, "bob") == [Sale("bob", "x", 1, at)]


def test_timers_fire_when_they_were_set_to_and_those_deleted_do_not(shop: Shop) -> None:
    with shop.h.edit() as edit:
        edit.set("fraud.quiet", "ann", "2024-01-01T13:00")
        edit.set("fraud.quiet", "bob", "2024-01-01T13:00")
        edit.append("fraud.ends", "ann", "2024-01-01T12:30")
        edit.append("fraud.ends", "ann", "2024-01-01T12:40")
        edit.set("fraud.wake", "ann", "2024-01-01T00:10")
    with shop.h.edit() as edit:
        edit.delete("fraud.quiet", "bob")
        edit.delete("fraud.ends", "ann", entry="2024-01-01T12:40")
    shop.h.take(shop.fraud)
    shop.h.epoch(watermark="13:30", clock="00:20")
    fired = sorted(alert.what.split(" ")[0] for alert in shop.h.take(shop.fraud))
    assert fired == ["ends", "quiet", "wake"]


def test_a_wall_timer_calls_for_an_epoch_of_its_own(shop: Shop) -> None:
    from headrace.read.store import Store, manifest_of

    with shop.h.edit() as edit:
        edit.set("fraud.wake", "ann", "2024-01-01T00:10")
    assert manifest_of(Store(shop.h.store)).next_due_us == shop.h.at("00:10")


def test_rows_of_latest_and_results_of_aggregates_that_are_what_is_stored(shop: Shop) -> None:
    with shop.h.edit() as edit:
        edit.patch("newest", ("ann", "tea"), {"cents": 99})
        edit.patch("totals", "tea", {"n": 100, "cents": 1_000})
        edit.delete("totals", "hat")
    assert shop.h.state(shop.newest, key=("ann", "tea")).cents == 99
    shop.sell(("ann", "tea", 1), ("ann", "hat", 2), at="12:01")
    tea, hat = (shop.h.state(shop.totals, key=key) for key in ("tea", "hat"))
    assert (tea.n, tea.cents, tea.last, tea.mean) == (101, 1_001, 1, 16 / 3)
    assert (hat.n, hat.cents) == (1, 2)


def test_broadcast_mappings_are_edited_by_their_own_keys(shop: Shop) -> None:
    with shop.h.edit() as edit:
        edit.set("priced.factors", "tea", 2)
        edit.set("priced.factors", "hat", 0.5)
    shop.h.take(shop.priced)
    shop.sell(("ann", "tea", 1), ("ann", "hat", 1))
    assert [alert.what for alert in shop.h.take(shop.priced)] == ["2.0", "0.5"]


def test_reducing_and_aggregating_states_are_set_as_they_are_stored(shop: Shop) -> None:
    with shop.h.edit() as edit:
        edit.set("fraud.most", "ann", 500)
        edit.set("fraud.runs", "ann", [1, 2, 3])
    shop.sell(("ann", "tea", 1))
    assert (shop.state(Fraud.most), shop.state(Fraud.runs)) == (500, [1, 2, 3, 1])


def test_a_ttl_begins_with_the_edit_unless_it_counts_from_creation_or_is_said(shop: Shop) -> None:
    shop.h.epoch(clock="00:30")
    with shop.h.edit() as edit:
        edit.set("fraud.short", "ann", 1)
        edit.set("fraud.first", "ann", 1)
        edit.set("fraud.short", "bob", 2, expires="5m")
        edit.set("fraud.short", "cid", 3, expires="never")
    shop.h.epoch(clock="00:45")
    assert [shop.state(Fraud.short, each) for each in ("ann", "bob", "cid")] == [1, None, 3]
    shop.h.epoch(clock="01:15")
    assert [shop.state(each) for each in (Fraud.short, Fraud.first)] == [1, None]
    shop.h.epoch(clock="01:35")
    assert [shop.state(Fraud.short, each) for each in ("ann", "cid")] == [None, 3]


REFUSED: list[tuple[str, Callable[[Editor], None], str]] = [
    ("another type", lambda edit: edit.set("fraud.total", "ann", "much"), "Expected `int`, got `str`"),
    ("a field that is none", lambda edit: edit.patch("fraud.card", "ann", {"x": 1}), "nothing is stored"),
    ("an unknown state", lambda edit: edit.set("fraud.totals", "ann", 1), "fraud.total or"),
    ("an unknown step", lambda edit: edit.set("frauds", "ann", 1), "no state 'frauds' is declared"),
    ("a step with several states", lambda edit: edit.set("fraud", "ann", 1), "fraud.card or"),
    ("windows", lambda edit: edit.set("hourly", "tea", {"n": 1}), "it keeps open windows"),
    ("a part of a key", lambda edit: edit.delete("newest", "ann"), "a JSON list of 2 parts"),
    ("rows that a join keeps", lambda edit: edit.delete("matched", "ann"), "it keeps rows for its step"),
    ("too few parts of a key", lambda edit: edit.delete("newest", ("ann",)), "a JSON list of 2 parts"),
    ("expiry in the past", lambda edit: edit.set("fraud.short", "ann", 7, expires="2020-01-01"), "has not passed"),
    ("a row of another key", lambda edit: edit.patch("newest", ("ann", "tea"), {"shop": "x"}), "whose shop is 'tea'"),
    ("an average", lambda edit: edit.patch("totals", "tea", {"mean": 1.0}), "the store holds partial values of it"),
    ("a result that is none", lambda edit: edit.patch("totals", "tea", {"shop": "x"}), "no result 'shop'"),
    ("some results of a new key", lambda edit: edit.set("totals", "new", {"n": 1}), "nothing for cents, mean, last"),
    ("a timer behind the watermark", lambda edit: edit.set("fraud.quiet", "ann", "2024-01-01"), "counts as fired"),
    ("a wall timer in the past", lambda edit: edit.set("fraud.wake", "ann", "2023-01-01"), "counts as fired"),
    ("no time", lambda edit: edit.set("fraud.quiet", "ann", "noon"), "noon"),
    ("an element that is not there", lambda edit: edit.delete("fraud.recent", "ann", entry=7), "0 to 1"),
    ("appending to a value", lambda edit: edit.append("fraud.total", "ann", 7), "one value for each key"),
    ("appending to a map", lambda edit: edit.append("fraud.shops", "ann", 7), "nothing can be appended"),
    ("an entry of a value", lambda edit: edit.set("fraud.total", "ann", 7, entry="x"), "one value for each key"),
    ("patching a list", lambda edit: edit.patch("fraud.recent", "ann", {"a": 1}), "list have no fields"),
    ("expiry without a TTL", lambda edit: edit.set("fraud.total", "ann", 7, expires="1h"), "do not expire"),
    ("a span that is none", lambda edit: edit.set("fraud.short", "ann", 7, expires="soon"), "or never"),
]


@pytest.mark.parametrize(("change", "words"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_what_does_not_fit_is_refused_and_nothing_is_changed(
    change: Callable[[Editor], None], words: str, shop: Shop
) -> None:
    with pytest.raises((ProgramError, StoreError)) as refused, shop.h.edit() as edit:
        edit.set("fraud.total", "bob", 1)
        change(edit)
    assert words in str(refused.value)
    assert refused.value.next_move
    assert (shop.h.published, shop.state(Fraud.total, "bob")) == (0, 5)


def test_going_back_to_the_epoch_before_undoes_an_edit(shop: Shop) -> None:
    with shop.h.edit() as edit:
        edit.set("fraud.total", "ann", 1)
    shop.sell(("ann", "tea", 1))
    assert shop.state(Fraud.total) == 2
    shop.h.rewind(0)
    assert shop.state(Fraud.total) == 30
    shop.h.epoch()
    assert shop.state(Fraud.total) == 31


def test_a_job_goes_back_to_an_edited_epoch_and_can_be_edited_behind_it(shop: Shop) -> None:
    with shop.h.edit() as edit:
        edit.set("fraud.total", "ann", 1)
    with shop.h.edit() as edit:
        edit.set("fraud.total", "bob", 2)
    shop.sell(("ann", "tea", 1))
    shop.h.rewind(edit.epoch)
    shop.h.epoch()
    assert [shop.state(Fraud.total, each) for each in ("ann", "bob")] == [2, 2]
    with shop.h.edit() as edit:
        edit.set("fraud.total", "ann", 50)
    shop.sell(("ann", "tea", 1))
    assert shop.state(Fraud.total) == 51


def test_an_edit_without_a_reason_is_refused() -> None:
    with pytest.raises(ProgramError, match="needs a reason"):
        Editor("anywhere", why=" ")


def test_edits_survive_folds_and_another_number_of_shards(tmp_path: Any) -> None:
    shop = Shop(str(tmp_path))
    with shop.h:
        shop.sell(("ann", "tea", 10))
        for total in range(20):
            with shop.h.edit() as edit:
                edit.set("fraud.total", "ann", total)
                edit.set("fraud.shops", "ann", {"x": total})
            shop.sell(("bob", "tea", 1))
            shop.h.maintain()
        assert (shop.state(Fraud.total), shop.state(Fraud.shops)) == (19, {"x": 19})
