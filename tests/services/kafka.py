"""A Kafka broker (KRaft, one node), for tests. Its jars come by Maven once, into the user's cache folder.

Besides its plain port it has one for each way of being careful (`Broker.at`): a login, TLS with certificates on both
sides, and a login over TLS.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.jvm import QUICK
from tests.serve.certificates import make_certificate
from tests.services import end, fetch, free_port, missing, needed, wait_for_port

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient

VERSION = "4.1.1"
ANSWER_S = 90.0
"""How long a broker may take for anything: it shares the machine with all that a test starts."""
_POM = f"""<project>
<modelVersion>4.0.0</modelVersion>
<groupId>headrace</groupId><artifactId>broker</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
</dependencies>
</project>
"""
_PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners={listeners},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
listener.name.sasl_plaintext.plain.sasl.jaas.config={plain}
listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config={scram}
listener.name.sasl_ssl.plain.sasl.jaas.config={plain}
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={scram}
ssl.keystore.type=PEM
ssl.keystore.location={identity}
ssl.truststore.type=PEM
ssl.truststore.location={certificate}
listener.name.ssl.ssl.client.auth=required
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
log.retention.ms=-1
log.dirs={logs}
"""
_LOGIN = "org.apache.kafka.common.security"
USER = "ann"
PASSWORD = r"s3cret\word"
"""Of the one who may log in. The backslash is there because each side of a login writes it in another way."""


def jars_folder() -> Path:
    """Where the broker's jars are, once they have been fetched."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "headrace" / f"kafka-broker-{VERSION}"


def broker_jars() -> Path:
    """The folder of the broker's jars; fetched where it is not there yet."""
    folder = jars_folder()
    if folder.is_dir():
        return folder
    maven = needed("mvn", "maven")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        (Path(scratch) / "pom.xml").write_text(_POM)
        command = [maven, "-q", "-B", "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"]
        command += [f"-DoutputDirectory={scratch}/jars"]
        if (reason := fetch(command, Path(scratch))) is not None:
            missing(f"Maven could not fetch the broker: {reason}")
        # Only a whole folder gets the name; whoever was quicker has made the same.
        if not folder.is_dir():
            os.rename(f"{scratch}/jars", folder)
    return folder


class Broker:
    """One node that is broker and controller; what it holds survives a stop or a kill."""

    def __init__(self, folder: Path) -> None:
        self._jars = broker_jars()
        self._java = needed("java", "openjdk-17-jre-headless")
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._ports = {way: free_port() for way in ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL")}
        self.port = self._ports["PLAINTEXT"]
        self.bootstrap = self.at("PLAINTEXT")
        folder.mkdir(parents=True, exist_ok=True)
        self.certificate, self.key = make_certificate(folder)
        """Of the broker and of everybody who is let in by TLS: it is signed by itself."""
        self._properties = folder / "server.properties"
        self._properties.write_text(self._settings())
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes)[:22].decode()
        known = ["--add-scram", f"SCRAM-SHA-512=[name={USER},password={PASSWORD}]"]
        self._run("kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(self._properties), *known)

    def at(self, protocol: str) -> str:
        """The address for clients with this ``security.protocol``."""
        return f"127.0.0.1:{self._ports[protocol]}"

    def _settings(self) -> str:
        identity = self._folder / "identity.pem"
        identity.write_text(self.key.read_text() + self.certificate.read_text())
        # Once for the text inside quotes, and once for the file of properties.
        password = PASSWORD.replace("\\", "\\" * 4)
        return _PROPERTIES.format(
            listeners=",".join(f"{way}://127.0.0.1:{port}" for way, port in self._ports.items()),
            controller=free_port(),
            plain=f'{_LOGIN}.plain.PlainLoginModule required user_{USER}="{password}";',
            scram=f"{_LOGIN}.scram.ScramLoginModule required;",
            identity=identity,
            certificate=self.certificate,
            logs=self._folder / "logs",
        )

    def _command(self, *words: str) -> list[str]:
        quick = ["-Xmx512m", *QUICK]
        return [self._java, *quick, "-cp", f"{self._jars}/*", *words]

    def _run(self, *words: str) -> None:
        done = subprocess.run(self._command(*words), capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            raise RuntimeError(f"{words[0]}: {(done.stdout + done.stderr)[-2000:]}")

    def start(self) -> None:
        log = self._folder / "broker.log"
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                self._command("kafka.Kafka", str(self._properties)), cwd=self._folder, stdout=out, stderr=out
            )
        wait_for_port(self.port, self._process, log)
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        ends, admin = time.monotonic() + ANSWER_S, self._admin()
        while True:
            try:
                admin.list_topics(timeout=2)
            except Exception:
                if time.monotonic() > ends:
                    raise
            else:
                return

    def stop(self, *, hard: bool = False) -> None:
        if self._process is not None:
            end(self._process, hard=hard)
            self._process = None

    def topic(self, name: str, partitions: int = 1) -> str:
        """Creates a topic and returns its name."""
        from confluent_kafka.cimpl import NewTopic

        admin = self._admin()
        for made in admin.create_topics([NewTopic(name, partitions, 1)]).values():
            made.result(ANSWER_S)
        self._wait_for_partitions(admin, name, partitions)
        return name

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Lets a topic have this many."""
        from confluent_kafka.cimpl import NewPartitions

        admin = self._admin()
        for made in admin.create_partitions([NewPartitions(topic, partitions)]).values():
            made.result(ANSWER_S)
        self._wait_for_partitions(admin, topic, partitions)

    def _wait_for_partitions(self, admin: AdminClient, topic: str, partitions: int) -> None:
        """The controller answers before the broker tells others: until then clients are refused a new partition."""
        ends = time.monotonic() + ANSWER_S
        while True:
            told = admin.list_topics(topic, timeout=10).topics[topic].partitions.values()
            if len(told) == partitions and all(partition.error is None for partition in told):
                return
            assert time.monotonic() < ends, f"{topic} has {len(told)} of {partitions} partitions"
            time.sleep(0.02)

    def send(self, topic: str, *messages: Mapping[str, Any]) -> None:
        """Writes messages (what ``Producer.produce`` takes of each), and says when one of them did not arrive."""
        from confluent_kafka import Producer

        refused: list[str] = []

        def note(error: KafkaError | None, _: Any) -> None:
            if error is not None:
                refused.append(error.str())

        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0, "queue.buffering.max.messages": 0})
        for message in messages:
            producer.produce(topic, **message, on_delivery=note)
        waiting = producer.flush(60)
        assert not waiting and not refused, f"{topic}: {waiting} messages wait, {len(refused)} failed: {refused[:3]}"

    def _admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient as Made

        return Made({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
