"""Programs of ``__main__`` and of functions reach another process whole; every claim is tried in a child process."""

from __future__ import annotations

import os
import pickle
import textwrap
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.errors import EnvironmentMissing, ProgramError, SettingsError
from headrace.model.record import row_type
from headrace.model.rows import codec_of
from headrace.plan.ship import copy_program, dump_program, load_program
from tests.forked import run_program

ROOT = Path(__file__).resolve().parents[2]


def run(code: str, folder: Path, name: str) -> str:
    script = folder / f"{name}.py"
    script.write_text(textwrap.dedent(code), encoding="utf-8")
    done = run_program(script)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def ship(folder: Path, program: str, use: str) -> str:
    """Dump `it` of a program that is ``__main__``, load it in another process, and print what `use` says of it."""
    tail = """
        from headrace.plan.ship import dump_program
        open("payload", "wb").write(dump_program(it))
    """
    run(textwrap.dedent(program) + textwrap.dedent(tail), folder, "sender")
    head = """
        from headrace.plan.ship import load_program
        it = load_program(open("payload", "rb").read())
    """
    return run(textwrap.dedent(head) + textwrap.dedent(use), folder, "receiver")


RECORDS = """
    from __future__ import annotations
    import dataclasses, enum, typing
    import msgspec
    import headrace as hr

    UserId = typing.NewType("UserId", str)

    class Color(enum.Enum):
        RED = "red"

    class Unit(typing.NamedTuple):
        name: str
        kind: Color

    @dataclasses.dataclass
    class Size:
        width: int
        unit: Unit | None = None
        tags: list[str] = dataclasses.field(default_factory=list)
        height: int = 2

    class Impression(hr.Record):
        "Doc."
        tweet: str
        at: hr.Timestamp
        user: UserId = UserId("nobody")
        color: Color = Color.RED
        size: Size | None = None
        n: int = 1
        many: list[int] = []

        LIMIT: typing.ClassVar[int] = 3

        @property
        def big(self) -> bool:
            return self.n > self.LIMIT

        @classmethod
        def one(cls, tweet: str) -> Impression:
            return cls(tweet, hr.Timestamp(1))

        def twice(self) -> Impression:
            return self.replace(n=self.n * 2)
"""


def test_a_record_of_main_keeps_fields_defaults_methods_and_types(tmp_path: Path) -> None:
    use = """
        import msgspec
        from headrace.model.rows import codec_of
        I = it
        row = I.one("a")
        print(row)
        print(row.twice().n, I("a", 1, n=9).big, I.__doc__, I.__module__, I.__qualname__)
        codec = codec_of(I)
        print(codec.spark_ddl)
        print(codec.to_objects(codec.to_arrays([row])) == [row], codec.required)
        got = msgspec.msgpack.decode(msgspec.msgpack.encode(row), type=I)
        print(got == row, type(got.color).__name__)
        print(I("a", 1).many is not I("a", 1).many)
        size = I("a", 1, size=I.__annotations__["size"].__args__[0](3)).size
        print(size)
        unit = type(size).__annotations__["unit"].__args__[0]
        print(codec.to_objects(codec.to_arrays([row.replace(size=type(size)(1, unit("cm", row.color)))]))[0].size)
        try:
            row.n = 4
        except AttributeError as error:
            print("frozen")
    """
    assert ship(tmp_path, RECORDS + "\n    it = Impression\n", use).splitlines() == [
        "Impression(tweet='a', at=1, user='nobody', color=<Color.RED: 'red'>, size=None, n=1, many=[])",
        "2 True Doc. __main__ Impression",
        "`tweet` STRING, `at` TIMESTAMP, `user` STRING, `color` STRING, "
        "`size` STRUCT<`width`: BIGINT, `unit`: BINARY, `tags`: ARRAY<STRING>, `height`: BIGINT>, `n` BIGINT, "
        "`many` ARRAY<BIGINT>",
        "True ('tweet', 'at')",
        "True Color",
        "True",
        "Size(width=3, unit=None, tags=[], height=2)",
        "Size(width=1, unit=Unit(name='cm', kind=<Color.RED: 'red'>), tags=[], height=2)",
        "frozen",
    ]


def test_classes_keep_their_identity_within_a_payload(tmp_path: Path) -> None:
    program = (
        RECORDS + "\n    one = Impression.one('a')\n    it = (Impression, one, lambda: Impression, Color, Color.RED)\n"
    )
    use = """
        cls, row, fn, color, red = it
        print(type(row) is cls, fn() is cls)
        print(cls.__annotations__["color"] is color, type(red) is color, row.color is red)
    """
    assert ship(tmp_path, program, use).split() == ["True"] * 5


def test_recursive_and_mutually_recursive_records_arrive(tmp_path: Path) -> None:
    program = """
        from __future__ import annotations
        import headrace as hr

        class Tree(hr.Record):
            value: int
            children: list[Tree] = []
            owner: Owner | None = None
            def total(self) -> int:
                return self.value + sum(child.total() for child in self.children)

        class Owner(hr.Record):
            name: str
            trees: list[Tree] = []
            def plant(self) -> Owner:
                return self.replace(trees=[*self.trees, Tree(1)])

        it = Tree
    """
    use = """
        import msgspec
        from headrace.model.values import value_codec
        tree = it(1, [it(2), it(3)])
        codec = value_codec(it)
        print(codec.decode(codec.encode(tree)) == tree, tree.total())
        owner = it.__annotations__["owner"].__args__[0]("ann").plant()
        print(type(owner.trees[0]) is it)
        print(value_codec(type(owner)).decode(value_codec(type(owner)).encode(owner)) == owner)
    """
    assert ship(tmp_path, program, use).splitlines() == ["True 6", "True", "True"]


def test_tags_renaming_keywords_inheritance_and_post_init_arrive(tmp_path: Path) -> None:
    program = """
        from __future__ import annotations
        import headrace as hr

        class Base(hr.Record, rename="camel", tag_field="kind", tag=True, kw_only=True):
            user_id: str
            other_n: int = 2

        class Click(Base, tag="click"):
            button_no: int
            def __post_init__(self) -> None:
                if self.button_no < 0:
                    raise ValueError("no such button")
            def shown(self) -> str:
                return super().__repr__().upper()

        class Scroll(Base, tag="scroll", order=True, omit_defaults=True):
            lines: int = 0

        it = Click | Scroll
    """
    use = """
        from headrace.model.rows import codec_of
        click, scroll = it.__args__
        rows = [click(3, user_id="a"), scroll(user_id="b")]
        codec = codec_of(it)
        print(codec.names, [line.decode() for line in codec.to_json(rows)])
        print(codec.to_objects(codec.to_arrays(rows)) == rows, rows[0].shown()[:5])
        print(click.__mro__[1] is scroll.__mro__[1], click.__mro__[1].__name__)
        try:
            click(-1, user_id="a")
        except ValueError as error:
            print(error)
    """
    assert ship(tmp_path, program, use).splitlines() == [
        "['kind', 'button_no', 'user_id', 'other_n', 'lines'] "
        """['{"kind":"click","buttonNo":3,"userId":"a","otherN":2}', '{"kind":"scroll","userId":"b"}']""",
        "True CLICK",
        "True Base",
        "no such button",
    ]


def test_process_functions_of_main_arrive_with_their_declarations(tmp_path: Path) -> None:
    program = """
        from __future__ import annotations
        from collections.abc import Iterator
        import headrace as hr

        class Tx(hr.Record):
            card: str
            cents: int = 0

        LIMIT = 5

        class Fraud(hr.Process[Tx, Tx, str]):
            total: hr.ValueState[int]
            seen: hr.MapState[str, Tx] = hr.state(ttl="7d")
            odd: hr.Side[Tx]
            def __init__(self, limit: int) -> None:
                self.limit = limit
            def on_event(self, event: Tx, ctx: hr.Context[str]) -> Iterator[Tx]:
                if event.cents > self.limit + LIMIT:
                    yield Tx(event.card, 1)

        it = (Fraud(limit=3), Tx)
    """
    use = """
        from headrace.dataflow.functions import Process, declarations, function_types
        fn, tx = it
        print(fn.limit, list(fn.on_event(tx("a", 9), None)), list(fn.on_event(tx("a", 8), None)))
        decls = declarations(type(fn))
        taken = function_types(type(fn), Process, 3)[0]
        print([(decl.name, decl.kind) for decl in decls], decls[1].args[1] is tx, taken is tx)
    """
    assert ship(tmp_path, program, use).splitlines() == [
        "3 [Tx(card='a', cents=1)] []",
        "[('total', 'value'), ('seen', 'map'), ('odd', 'side')] True True",
    ]


def test_codecs_and_row_types_arrive(tmp_path: Path) -> None:
    program = (
        RECORDS
        + """
    from headrace.model.record import row_type
    from headrace.model.rows import codec_of
    it = (codec_of(Impression), Impression, codec_of(row_type("Row", {"a": int | None, "i": Impression})))
    """
    )
    use = """
        from headrace.model.rows import codec_of
        from headrace.model.record import row_type
        codec, cls, rows = it
        print(codec is codec_of(cls), rows.type is row_type("Row", {"a": int | None, "i": cls}))
        print(rows.to_objects(rows.to_arrays([rows.type(1, cls.one("a"))]))[0].i == cls.one("a"))
    """
    assert ship(tmp_path, program, use).splitlines() == ["True True", "True"]


def test_two_payloads_of_one_process_share_their_classes(tmp_path: Path) -> None:
    program = (
        RECORDS
        + """
    from headrace.plan.ship import dump_program
    it = (dump_program(Impression), dump_program([Impression.one("a"), UserId]))
    """
    )
    use = """
        first, (row, user) = map(load_program, it)
        print(type(row) is first, user("x"), first.__annotations__["user"] is user)
    """
    assert ship(tmp_path, program, use) == "True x True"


def test_a_module_that_is_registered_goes_by_value(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "shapes.py").write_text(
        "import headrace as hr\nclass Point(hr.Record):\n    x: int\n    def up(self): return Point(self.x + 1)\n"
    )
    program = """
        import sys
        sys.path.insert(0, "lib")
        import shapes
        from headrace.plan.ship import ship_by_value
        ship_by_value(shapes)
        it = shapes.Point(1)
    """
    assert ship(tmp_path, program, "print(it.up())") == "Point(x=2)"


def test_a_module_that_is_missing_over_there_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "somewhere.py").write_text("def f(x):\n    return x\n")
    program = """
        import sys
        sys.path.insert(0, "lib")
        import somewhere
        it = somewhere.f
    """
    with pytest.raises(AssertionError, match="a worker cannot import the module 'somewhere'"):
        ship(tmp_path, program, "")
    assert issubclass(EnvironmentMissing, hr.HeadraceError)


def test_classes_of_functions_come_back_as_themselves_at_home() -> None:
    class Point(hr.Record):
        x: int

        def up(self) -> Point:
            return Point(self.x + 1)

    before = Point.up
    back = load_program(dump_program((Point, Point(1))))
    assert back[0] is Point
    assert back[1] == Point(1)
    assert Point.up is before


def test_generic_records_arrive() -> None:
    pair = load_program(dump_program(row_type("Row", {"a": dict[str, list[int]], "b": msgspec.Struct | None})))
    assert pair is row_type("Row", {"a": dict[str, list[int]], "b": msgspec.Struct | None})


def test_what_cannot_be_shipped_is_told_with_a_next_move() -> None:
    lock = threading.Lock()
    with pytest.raises(ProgramError, match="cannot be shipped") as caught:
        dump_program(lambda: lock)
    assert "open()" in caught.value.next_move


def test_the_app_and_streams_stay_in_the_driver() -> None:
    app = hr.App("shipped")
    rows = app.read("rows", hr.source.items(["a"]), str)
    for fn in (lambda: app.name, lambda: rows):
        with pytest.raises(ProgramError, match="in the driver only"):
            dump_program(fn)


def test_a_secret_travels_to_workers_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PG_DSN", "hunter2")
    dsn = hr.secret("PG_DSN")
    assert b"hunter2" not in pickle.dumps(dsn)
    assert b"hunter2" in dump_program({"dsn": dsn})
    monkeypatch.delenv("PG_DSN")
    assert load_program(dump_program(dsn)) == "hunter2"
    with pytest.raises(SettingsError, match="PG_DSN"):
        dump_program(hr.secret("PG_DSN"))


def test_field_descriptors_and_unions_arrive() -> None:
    class Click(hr.Record, tag=True):
        user: str

    class Scroll(hr.Record, tag=True):
        user: str

    descriptor, union = load_program(dump_program((Click.user, Click | Scroll)))
    assert descriptor is Click.user
    assert union == Click | Scroll
    payload: Any = dump_program(codec_of(Click | Scroll))
    assert load_program(payload) is codec_of(Click | Scroll)


# -- copies in this process ----------------------------------------------------------------------------------------


def test_a_copy_has_its_own_objects_and_shares_code() -> None:
    heard: list[str] = []

    class Tap(hr.Record):
        user: str

    class Keeping(hr.Process[Tap, Tap, str]):
        def __init__(self) -> None:
            self.seen: dict[str, list[int]] = {"a": [1]}
            self.module = os
            self.call = heard.append
            self.shared = self.seen

        def on_event(self, event: Tap, ctx: hr.Context[str]) -> None: ...

    function = Keeping()
    copied = copy_program({"function": function, "class": Keeping, "method": function.on_event})
    other = copied["function"]
    assert copied["class"] is Keeping and type(other) is Keeping
    assert other is not function and other.seen == function.seen and other.seen["a"] is not function.seen["a"]
    assert other.shared is other.seen and copied["method"].__self__ is other
    assert other.module is os
    other.call("there")
    assert heard == ["there"]
    assert Keeping.on_event is type(other).on_event


def test_a_copy_leaves_behind_what_does_not_travel() -> None:
    sink = hr.sink.collect().bind(codec_of(row_type("Tap", {"user": str})), "out")
    assert not hasattr(copy_program(sink), "rows")


def test_former_names_of_fields_and_functions_of_migrations_arrive(tmp_path: Path) -> None:
    program = """
        import headrace as hr
        from headrace.model.migrations import registered_migrations

        class Cents(hr.Record):
            cents: int

        class Money(hr.Record):
            euros: float
            currency: str = hr.field(default="EUR", was=("coin", "valuta"))

        RATE = 100

        @hr.migrate(Cents, Money)
        def to_money(old: Cents) -> Money:
            return Money(old.cents / RATE)

        it = (Money, registered_migrations())
    """
    use = """
        from headrace.model.type_change import compare_types
        from headrace.model.type_shape import describe_type
        Money, [migration] = it
        shape = describe_type(Money)
        print(shape.fields[1].was, migration.name)
        change = compare_types(migration.old, shape, [migration])
        print(change.text, change.adapt({"cents": 250}))
    """
    assert ship(tmp_path, program, use).splitlines() == [
        "('coin', 'valuta') to_money",
        "Cents → Money by to_money {'euros': 2.5, 'currency': 'EUR'}",
    ]
