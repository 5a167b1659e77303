"""What of the processes behind Spark reaches the terminal: everything a user said, and no trace of their going."""

from __future__ import annotations

import contextlib
import logging
import textwrap

import pytest
from py4j.java_gateway import GatewayClient
from py4j.protocol import EMPTY_RESPONSE, ERROR, Py4JNetworkError

from headrace.spark.driver import StopRequested
from headrace.spark.quiet import quiet_lines, quiet_the_bridge


def shown(text: str) -> list[str]:
    return list(quiet_lines(textwrap.dedent(text).lstrip("\n").splitlines(keepends=True)))


LOST = f"""
Traceback (most recent call last):
Traceback (most recent call last):
  File "/venv/lib/site-packages/pyspark/util.py", line 822, in local_connect_and_auth
    sock.connect(sock_path)
FileNotFoundError: [Errno 2] No such file or directory

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "{contextlib.__file__}", line 137, in __enter__
    return next(self.gen)
           ^^^^^^^^^^^^^^
  File "/venv/lib/site-packages/pyspark/util.py", line 828, in local_connect_and_auth
    raise PySparkRuntimeError(
pyspark.errors.exceptions.base.PySparkRuntimeError: [CANNOT_OPEN_SOCKET] Can not open socket
"""


def test_processes_that_lose_each_other_at_the_end_of_a_run_say_nothing() -> None:
    assert shown(LOST) == []
    assert shown(LOST + "printed\n\nby a function\n") == ["printed\n", "\n", "by a function\n"]


def test_a_trace_that_a_users_function_prints_is_shown_whatever_it_is_about() -> None:
    text = """
        Traceback (most recent call last):
          File "/srv/ann/tweets.py", line 3, in on_event
            open("nowhere")
        FileNotFoundError: [Errno 2] No such file or directory: 'nowhere'
        """
    assert "".join(shown(text)) == textwrap.dedent(text).lstrip("\n")
    of_spark = text.replace("FileNotFoundError", "ValueError").replace("/srv/ann", "/venv/pyspark")
    assert len(shown(of_spark)) == 4


def test_lines_of_spark_that_mean_nothing_to_a_user_are_left_out() -> None:
    text = """
        WARNING: Using incubator modules: jdk.incubator.vector
        26/11/16 12:00:00 WARN NativeCodeLoader: Unable to load native-hadoop library
        hello
        """
    assert shown(text) == ["hello\n"]


def test_py4j_logs_no_trace_of_an_exception_that_only_stops_the_query(caplog: pytest.LogCaptureFixture) -> None:
    quiet_the_bridge()
    log = logging.getLogger("py4j.clientserver")
    for raised in (StopRequested(), ValueError("a fault of another")):
        try:
            raise raised
        except Exception:
            log.exception("There was an exception while executing the Python Proxy on the Python Side.")
    assert ["ValueError" in record.exc_text for record in caplog.records if record.exc_text] == [True]


def test_a_call_that_the_death_of_the_jvm_interrupts_fails_and_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    quiet_the_bridge()
    client = GatewayClient()
    client._get_connection = DyingConnection  # type: ignore[method-assign]
    assert client.send_command("c\n", retry=False) == ERROR
    logging.error("a line of the program's own")
    assert [record.message for record in caplog.records] == ["a line of the program's own"]


class DyingConnection:
    """Of a JVM that dies before it answers."""

    def send_command(self, command: str) -> str:
        raise Py4JNetworkError("Answer from Java side is empty", when=EMPTY_RESPONSE)

    def close(self, reset: bool = False) -> None:
        pass
