"""The climate of rooms: readings converted by SQL, windows per room, and rows that come late or make no sense."""

from __future__ import annotations

import headrace as hr

data = hr.var("data", "./.headrace/sensors-data")


class Reading(hr.Record):
    sensor: str
    at: hr.Timestamp
    celsius: float


class Measured(hr.Record):
    sensor: str
    room: str
    at: hr.Timestamp
    celsius: float
    fahrenheit: float
    hot: bool


class Climate(hr.Record):
    room: str  # the key, the window and the pane are filled in by their names
    window_start: hr.Timestamp
    window_end: hr.Timestamp
    readings: int
    mean: float
    warmest: str  # the sensor with the highest reading
    pane: str  # early, on_time or late


app = hr.App("sensors")
readings = app.read(
    "readings", hr.source.files(f"{data}/readings", format="csv"), Reading, time=Reading.at, out_of_order="30s"
)
# Rows that cannot be decoded go here, with file and line; without this they would stop the job.
readings.errors.write(hr.sink.files(f"{data}/bad"), name="bad")

measured = readings.where("celsius BETWEEN -90 AND 150").with_columns(
    Measured,
    room="split(sensor, '-')[0]",
    fahrenheit="celsius * 1.8D + 32D",
    hot=hr.col("celsius") > 80,
)
measured.where("hot").select("sensor", "at", "celsius").write(hr.sink.files(f"{data}/hot", format="csv"), name="hot")

climate = (
    measured.key_by(Measured.room)
    .window(hr.tumbling("5m"), fire=hr.early("10s"), allow_late="10m")
    .aggregate(Climate, readings=hr.count(), mean=hr.avg("celsius"), warmest=hr.max("sensor", by="celsius"))
    .named("climate")
    .queryable(keep="24h")
)
climate.show()  # every result, as it is refined
climate.finals().write(hr.sink.files(f"{data}/climate"))  # the last result of each window, once
climate.late.write(hr.sink.files(f"{data}/late"), name="late")

latest = measured.key_by(Measured.sensor).latest().named("latest").queryable()

if __name__ == "__main__":
    app.run(until="caught_up")
