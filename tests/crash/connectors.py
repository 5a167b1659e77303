"""The servers of the connector program, and what is to be seen in them."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headrace.model.rows import codec_of
from headrace.state.manifest import list_epochs
from headrace.state.store import open_store
from tests.crash.connector_program import Click, Services, make_click
from tests.crash.files import written_lines
from tests.services.messages import read_messages

if TYPE_CHECKING:
    from tests.services.kafka import Broker
    from tests.services.postgres import Postgres

PARTITIONS = 2


def fill(broker: Broker, rows: int, seed: int = 7) -> str:
    """A topic with clicks; those of a user are in one partition, so their order is the same for everybody."""
    topic = broker.topic(f"clicks-{uuid.uuid4().hex[:8]}", PARTITIONS)
    rng = random.Random(seed)
    clicks = [make_click(i, rng) for i in range(rows)]
    texts = codec_of(Click).to_json(clicks)
    broker.send(topic, *({"value": text, "key": click.user} for click, text in zip(clicks, texts, strict=True)))
    return topic


@dataclass
class Outside:
    """The servers, and the place in them that one store of the program writes to."""

    broker: Broker
    postgres: Postgres
    folder: Path
    services: Services

    @classmethod
    def make(cls, broker: Broker, postgres: Postgres, folder: Path, clicks: str) -> Outside:
        folder.mkdir(parents=True)
        visits = broker.topic(f"visits-{uuid.uuid4().hex[:8]}", PARTITIONS)
        services = Services(broker.bootstrap, postgres.database(), clicks, visits)
        (folder / "services.json").write_bytes(msgspec.json.encode(services))
        return cls(broker, postgres, folder, services)

    def seen(self) -> dict[str, list[str]]:
        """What readers see: of committed messages by partition and in their order, of tables and files sorted."""
        import psycopg

        messages: dict[str, list[str]] = {f"visits {number}": [] for number in range(PARTITIONS)}
        for message in read_messages(self.services.brokers, self.services.visits):
            value, key = message.value(), message.key()
            assert value is not None and key is not None
            messages[f"visits {message.partition()}"].append(f"{key.decode()} {value.decode()}")
        with psycopg.connect(self.services.dsn) as connection:
            tables = {
                table: sorted(map(str, connection.execute(f"SELECT * FROM {table}").fetchall()))
                for table in ("per_minute", "totals")
            }
        # Only the order of a key's messages is promised; messages of different shards meet by chance.
        by_key = {name: sorted(lines, key=lambda line: line.split(" ")[0]) for name, lines in messages.items()}
        return {**by_key, **tables, **written_lines(self.folder, ("active", "letters", "odd"))}

    def go_away(self) -> None:
        """Both servers die at once, as in a power cut."""
        self.broker.stop(hard=True)
        self.postgres.stop(hard=True)

    def come_back(self) -> None:
        self.postgres.start()
        self.broker.start()


def published(folder: Path) -> int:
    """The newest published epoch of the program in a folder; −1 before the first."""
    store = folder / "store"
    return max(list_epochs(open_store(store), 0), default=-1) if store.exists() else -1
