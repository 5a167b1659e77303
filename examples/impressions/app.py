"""Impressions of tweets: counters that a web page reads from the state itself, while they are counted."""

from __future__ import annotations

import random

import headrace as hr

RATE = 2_000  # impressions per second
TWEETS = 300
START = hr.timestamp("2024-05-01T12:00:00Z")


class Impression(hr.Record):
    tweet: str
    at: hr.Timestamp


class Total(hr.Record):
    tweet: str
    views: int
    last_seen: hr.Timestamp


class Recent(hr.Record):
    tweet: str
    window_start: hr.Timestamp
    views: int


def make_impression(i: int, rng: random.Random) -> Impression:
    """Impression number i: a few tweets get most of the views, and which ones they are moves on every ten seconds."""
    rank = min(int(rng.paretovariate(0.9)), TWEETS)
    newest = i // (10 * RATE)
    return Impression(f"tweet-{(7 * newest + rank) % TWEETS}", START + hr.milliseconds(1) * (i * 1000 // RATE))


app = hr.App("impressions")
source = hr.source.generator(make_impression, rate=RATE, per_epoch=2 * RATE)
impressions = app.read("impressions", source, Impression, time=Impression.at, out_of_order="1s")
by_tweet = impressions.key_by(Impression.tweet)

# Nothing is written anywhere: whoever wants to know asks the state.
totals = by_tweet.aggregate(Total, views=hr.count(), last_seen=hr.max("at")).named("totals").queryable()
recent = by_tweet.window(hr.tumbling("5s")).aggregate(Recent, views=hr.count()).named("recent").queryable(keep="2m")

if __name__ == "__main__":
    app.run()
