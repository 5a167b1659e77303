-- Valleys: machines whose temperature falls and rises again, as when a heater fails and comes back.

CREATE TABLE readings (
  machine STRING NOT NULL,
  at TIMESTAMP(3) NOT NULL,
  celsius DOUBLE NOT NULL,
  WATERMARK FOR at AS at - INTERVAL '30' SECOND
) WITH (
  'connector' = 'files',
  'path' = VAR('data', './.headrace/machines-data') || '/readings',
  'format' = 'csv'
);

CREATE VIEW valleys AS
SELECT machine, since, until, before, lowest, after, readings, before - lowest AS fell
FROM readings MATCH_RECOGNIZE (
  PARTITION BY machine
  ORDER BY at
  MEASURES
    DOWN_FIRST.at AS since,
    MATCH_ROWTIME() AS until,
    PREV(DOWN_FIRST.celsius) AS before,
    MIN(FALL.celsius) AS lowest,
    LAST(UP.celsius) AS after,
    COUNT(*) AS readings
  ONE ROW PER MATCH
  AFTER MATCH SKIP PAST LAST ROW
  PATTERN (DOWN_FIRST DOWN* UP+)
  WITHIN INTERVAL '1' HOUR
  SUBSET FALL = (DOWN_FIRST, DOWN)
  DEFINE
    DOWN_FIRST AS celsius < PREV(celsius),
    DOWN AS celsius < PREV(celsius),
    UP AS celsius > PREV(celsius)
) AS valley;

-- Small ones are noise.
CREATE TABLE failures (
  machine STRING, since TIMESTAMP(3), until TIMESTAMP(3), before DOUBLE, lowest DOUBLE, after DOUBLE, readings BIGINT
)
WITH ('connector' = 'files', 'path' = VAR('data', './.headrace/machines-data') || '/failures');

INSERT INTO failures
SELECT machine, since, until, before, lowest, after, readings FROM valleys WHERE fell >= 10;
