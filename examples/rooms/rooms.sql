-- The climate of rooms, in SQL: windows that are final, results while they fill, late rows and bad rows.

CREATE TABLE readings (
  sensor STRING NOT NULL,
  at TIMESTAMP(3) NOT NULL,
  celsius DOUBLE NOT NULL,
  room AS split(sensor, '-')[0],
  WATERMARK FOR at AS at - INTERVAL '30' SECOND
) WITH (
  'connector' = 'files',
  'path' = VAR('data', './.headrace/sensors-data') || '/readings',
  'format' = 'csv'
);

CREATE VIEW plausible AS SELECT * FROM readings WHERE celsius BETWEEN -90 AND 150;

-- Early: a row for each room and five minutes, which changes with every epoch. It is state, and can be read at once.
CREATE MATERIALIZED VIEW filling AS
SELECT room, since, count(*) AS readings, avg(celsius) AS mean
FROM (SELECT room, celsius, timestamp_seconds(unix_seconds(at) DIV 300 * 300) AS since FROM plausible)
GROUP BY room, since;

-- Final: one row for each window, once it is closed for good.
CREATE TABLE climate (room STRING, window_start TIMESTAMP(3), window_end TIMESTAMP(3), readings BIGINT, mean DOUBLE)
WITH ('connector' = 'files', 'path' = VAR('data', './.headrace/sensors-data') || '/climate');

INSERT INTO climate
SELECT room, window_start, window_end, count(*), round(avg(celsius), 2)
FROM TABLE(TUMBLE(TABLE plausible, DESCRIPTOR(at), INTERVAL '5' MINUTES))
GROUP BY room, window_start, window_end;

-- What came too late for its window, and what could not be read at all.
CREATE TABLE late (sensor STRING, at TIMESTAMP(3), celsius DOUBLE)
WITH ('connector' = 'files', 'path' = VAR('data', './.headrace/sensors-data') || '/late');
INSERT INTO late SELECT sensor, at, celsius FROM into_climate$late;

CREATE TABLE bad (error STRING, line STRING)
WITH ('connector' = 'files', 'path' = VAR('data', './.headrace/sensors-data') || '/bad');
INSERT INTO bad SELECT error, CAST(`row` AS STRING) FROM readings$errors;
