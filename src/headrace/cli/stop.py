"""``headrace stop``: ends a job that runs in another process, wherever that is, and waits until it has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import options
from headrace.cli.exits import Exit, Json, Trace, report_errors

if TYPE_CHECKING:
    from headrace.checkpoint.commands import JobAnswer, JobCommand
    from headrace.checkpoint.fence import Beat
    from headrace.state.store import StoreFiles


def stop(
    store: options.Store,
    savepoint: Annotated[
        str, typer.Option("--savepoint", metavar="NAME", help="Pin its last epoch under this name.")
    ] = "",
    note: Annotated[str, typer.Option("--note", help="Why the savepoint is kept.")] = "",
    drain: Annotated[
        bool, typer.Option("--drain", help="First read the input of now to its end and fire everything; it is final.")
    ] = False,
    as_json: Json = False,
    trace: Trace = False,
) -> None:
    """End a running job after its current epoch, from anywhere that reaches its store. The next run goes on from there.

    Example: headrace stop ./state

    Example: headrace stop s3://bucket/tweets --savepoint before-v2

    Example: headrace stop ./state --drain
    """
    with report_errors(trace=trace, as_json=as_json):
        from headrace.checkpoint.commands import Stop, send_command
        from headrace.read.store import open_for_reading
        from headrace.state.savepoints import check_free

        if note and not savepoint:
            raise typer.BadParameter("--note belongs to a savepoint: --savepoint NAME --note TEXT")
        files = open_for_reading(store)
        if savepoint:
            check_free(files, savepoint)
        command = send_command(files, Stop(savepoint, note, drain))
        _wait(files, command, store, drain=drain, as_json=as_json)


def _wait(files: StoreFiles, command: JobCommand, store: str, *, drain: bool, as_json: bool) -> None:
    from headrace.checkpoint.commands import await_answer, await_end
    from headrace.cli.bars import waiting_line
    from headrace.cli.exits import tell_interrupted

    try:
        with waiting_line("stopping", quiet=as_json) as say:
            answer = await_answer(files, command, tell=lambda driver: say(lambda: _waiting_text(files, driver)))
            await_end(files, command.fence)
    except KeyboardInterrupt:
        tell_interrupted(f"the job was asked, and ends all the same; headrace epochs {store} shows its epochs")
        raise typer.Exit(Exit.INTERRUPTED) from None
    _say(files, answer, drain=drain, as_json=as_json)


def _waiting_text(files: StoreFiles, driver: Beat) -> str:
    from headrace.state.lineage import read_places

    places = read_places(files)
    newest = f"; epoch {places[-1].epoch} is the newest" if places else ""
    return f"waiting for process {driver.pid} on {driver.host} to end its epoch{newest}"


def _say(files: StoreFiles, answer: JobAnswer, *, drain: bool, as_json: bool) -> None:
    from headrace.cli.show import print_json
    from headrace.state.moments import plain_address

    epoch = answer.epoch if answer.epoch >= 0 else None
    if as_json:
        print_json({"store": files.url, "epoch": epoch, "savepoint": answer.savepoint or None, "drained": drain})
        return
    last = "before its first epoch" if epoch is None else f"after epoch {epoch}"
    print(f"drained: {last}, which is the last" if drain else f"stopped {last}; the next run goes on from there")
    if answer.savepoint:
        print(f"  savepoint {answer.savepoint}: headrace savepoints {plain_address(files.url)} {answer.savepoint}")
