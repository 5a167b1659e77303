from __future__ import annotations

import subprocess
from pathlib import Path

import headrace as hr
from headrace.cli.loading import load_app
from tests.examples.programs import EXAMPLES
from tests.serve.pg_served import PgServed
from tests.services import needed

HERE = EXAMPLES / "dashboard"


def test_psql_shows_the_dashboard_of_a_published_epoch(tmp_path: Path) -> None:
    psql = needed("psql", "postgresql")
    app = load_app(str(HERE / "shop.sql"), variables={"orders": "25000"})
    (source,) = [node for node in app.nodes if node.name == "orders"]
    start_us, names = 1_704_110_400_000_000, ("harbour", "market", "station")
    orders = [
        source.codec.type(
            shop=names[i % 3], customer=f"customer-{i % 500}", cents=100 + i * 7 % 991, at=start_us + i * 100_000
        )
        for i in range(2_000)
    ]
    with hr.testing.Harness(app, store=tmp_path / "store") as h:
        h.push(hr.Stream(app, source), *orders)
        h.epoch()
    with PgServed(tmp_path / "store") as served:
        served.wait_for(0)
        command = [psql, "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", served.dsn, "-f", str(HERE / "dashboard.sql")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    cents = {shop: sum(each.cents for each in orders if each.shop == shop) for shop in names}
    best = max(names, key=cents.__getitem__)
    assert lines[0] == "Shops by revenue"
    assert lines[1].startswith(f"{best}|{sum(each.shop == best for each in orders)}|{cents[best] / 100:.2f}|500|")
    minutes = lines[lines.index("Revenue by minute, each beside that of the minute before") + 1 :][:6]
    newest, before = (
        dict(zip(["shop", "minute", "cents", "change"], row.split("|"))) for row in (minutes[0], minutes[3])
    )
    assert newest["shop"] == before["shop"] and newest["minute"] > before["minute"]
    assert int(newest["change"]) == int(newest["cents"]) - int(before["cents"])
    shares = lines[lines.index("The share of each shop in its newest minute") + 1 :][:3]
    assert abs(sum(float(row.split("|")[1]) for row in shares) - 100) < 0.2
    assert len(lines) == 4 + 3 + 6 + 3 + 3
