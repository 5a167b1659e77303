"""Missed deliveries: parcels that were put on a van and neither delivered nor brought back within ten hours."""

from __future__ import annotations

import headrace as hr

data = hr.var("data", "./.headrace/parcels-data")


class Scan(hr.Record):
    parcel: str
    at: hr.Timestamp
    what: str
    place: str


class Missed(hr.Record):
    parcel: str
    van: str
    since: hr.Timestamp


class Tour(hr.Record):
    parcel: str
    van: str
    minutes: float


# What does not happen in time: the pattern is complete when ten hours have passed without such a scan.
MISSED = hr.pattern("loaded", "what = 'loaded'").not_then("done", "what IN ('delivered', 'returned')").within("10h")
# What does: how long a parcel was on its van.
DELIVERED = hr.pattern("loaded", "what = 'loaded'").then("delivered", "what = 'delivered'").within("10h")

app = hr.App("parcels")
scans = app.read("scans", hr.source.files(f"{data}/scans"), Scan, time=Scan.at, out_of_order="10m")
by_parcel = scans.key_by(Scan.parcel)

watched = by_parcel.match(MISSED).named("missed")
missed = watched.select(Missed, parcel="loaded.parcel", van="loaded.place", since="loaded.at")
missed.write(hr.sink.files(f"{data}/missed"))

tours = by_parcel.match(DELIVERED).named("tours").map(
    lambda tour: Tour(tour.loaded.parcel, tour.loaded.place, (tour.delivered.at - tour.loaded.at) / hr.minutes(1)),
    output=Tour,
)  # fmt: skip
tours.write(hr.sink.files(f"{data}/tours"), name="delivered")

if __name__ == "__main__":
    app.run(until="drained")
