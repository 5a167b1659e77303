"""Readings of sensors: converted by SQL, the latest kept per sensor, and rows that make no sense put aside."""

from __future__ import annotations

import headrace as hr

data = hr.var("data", "./.headrace/sensors-data")


class Reading(hr.Record):
    sensor: str
    at: hr.Timestamp
    celsius: float


class Measured(hr.Record):
    sensor: str
    site: str
    at: hr.Timestamp
    celsius: float
    fahrenheit: float
    hot: bool


app = hr.App("sensors")
readings = app.read(
    "readings", hr.source.files(f"{data}/readings", format="csv"), Reading, time=Reading.at, out_of_order="30s"
)
# Rows that cannot be decoded go here, with file and line; without this they would stop the job.
readings.errors.write(hr.sink.files(f"{data}/bad"), name="bad")

measured = readings.where("celsius BETWEEN -90 AND 150").with_columns(
    Measured,
    site="split(sensor, '-')[0]",
    fahrenheit="celsius * 1.8D + 32D",
    hot=hr.col("celsius") > 80,
)
measured.where("hot").select("sensor", "at", "celsius").write(hr.sink.files(f"{data}/hot", format="csv"), name="hot")

latest = measured.key_by(Measured.sensor).latest().named("latest").queryable()

if __name__ == "__main__":
    app.run(until="caught_up")
