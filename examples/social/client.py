"""The network from outside: commands go to the log by HTTP, and what became of them is read from the state.

python examples/social/client.py bob follow ann
python examples/social/client.py ann post "Hello, world"
python examples/social/client.py bob timeline
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
import uuid
from typing import Any

import headrace as hr


class Network:
    """Sends commands, and reads its own writes."""

    def __init__(self, log: str = "http://localhost:8400", state: str = "localhost:6399") -> None:
        self._log = log
        self._state = hr.Client(state)
        self._sent: dict[str, Any] = {}

    def send(self, type: str, **command: str | int) -> None:
        """One command. It is durable when this returns, and sent again after trouble it would not be done twice."""
        request = urllib.request.Request(
            f"{self._log}/streams/commands/events",
            json.dumps({"type": type, **command}).encode(),
            {"Content-Type": "application/json", "Idempotency-Key": uuid.uuid4().hex},
        )
        with urllib.request.urlopen(request) as answer:
            self._sent = json.load(answer)["offset"]

    def post(self, user: str, text: str) -> str:
        name = f"{user}-{uuid.uuid4().hex[:6]}"
        self.send("Post", user=user, id=name, text=text, at=time.time_ns() // 1000)
        return name

    def timeline(self, user: str) -> list[dict[str, Any]]:
        """The newest first."""
        return [*reversed(self._read("timelines.entries").get(user) or [])]

    def followers(self, user: str) -> list[str]:
        return sorted(self._read("members.followers").get(user) or {})

    def likes(self, post: str) -> int:
        found = self._read("likes").get(post)
        return found["likes"] if found else 0

    def close(self) -> None:
        self._state.close()

    def _read(self, name: str) -> Any:
        """A state that has seen what was sent from here; there is none before its first key."""
        if self._sent:
            self._state.wait_for(offset={"commands": self._sent}, timeout="30s")
        return self._state.state(name) if name in self._state.states() else {}


def main(user: str, verb: str, what: str = "") -> None:
    network = Network()
    match verb:
        case "post":
            print(network.post(user, what))
        case "follow" | "unfollow":
            network.send(verb.capitalize(), user=user, whom=what)
            print(f"followers of {what}: {', '.join(network.followers(what)) or 'nobody'}")
        case "like":
            network.send("Like", user=user, post=what)
            print(f"likes: {network.likes(what)}")
        case "timeline":
            for entry in network.timeline(user):
                print(f"{entry['author']}: {entry['text']}  [{entry['post']}, {network.likes(entry['post'])} likes]")
    network.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
