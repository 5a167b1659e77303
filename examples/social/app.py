"""A small social network: what people do is a log of commands, and what they see is state that follows from it."""

from __future__ import annotations

from collections.abc import Iterator

import headrace as hr

data = hr.var("data", "./.headrace/social-data")


# What can be done. The log keeps these for good; everything below can be made from them again.


class Post(hr.Record, tag=True):
    user: str
    id: str
    text: str
    at: hr.Timestamp


class Follow(hr.Record, tag=True):
    user: str
    whom: str


class Unfollow(hr.Record, tag=True):
    user: str
    whom: str


class Like(hr.Record, tag=True):
    user: str
    post: str


MemberCommand = Post | Follow | Unfollow
Command = MemberCommand | Like


# What can be seen.


class Entry(hr.Record):
    """A post on the timeline of somebody."""

    reader: str
    author: str
    post: str
    text: str
    at: hr.Timestamp


class Liked(hr.Record):
    post: str
    likes: int


def concerns(command: MemberCommand) -> str:
    """Whose followers it is about."""
    return command.user if isinstance(command, Post) else command.whom


class Members(hr.Process[MemberCommand, Entry, str]):
    """Knows the followers of a member, and takes what the member posts to them."""

    followers: hr.MapState[str, bool]
    posts: hr.ValueState[int]

    def on_event(self, event: MemberCommand, ctx: hr.Context[str]) -> Iterator[Entry]:
        match event:
            case Follow() if event.user != event.whom:
                self.followers[event.user] = True
            case Unfollow():
                self.followers.pop(event.user, None)
            case Post():
                self.posts.set(self.posts.get(0) + 1)
                for reader in [event.user, *self.followers]:
                    yield Entry(reader, event.user, event.id, event.text, event.at)


class Timelines(hr.Process[Entry, None, str]):
    entries: hr.ListState[Entry] = hr.state(max_len=100)  # the newest hundred

    def on_event(self, event: Entry, ctx: hr.Context[str]) -> None:
        self.entries.append(event)


app = hr.App("social")
log = hr.source.ingest(f"{data}/log", stream="commands")
commands = app.read("commands", log, Command)

members = commands.only(MemberCommand).key_by(concerns).process(Members()).queryable()
timelines = members.key_by(Entry.reader).process(Timelines()).queryable()
likes = commands.only(Like).key_by(Like.post).aggregate(Liked, likes=hr.count_distinct("user"))
likes.named("likes").queryable()

if __name__ == "__main__":
    app.run()
