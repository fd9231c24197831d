"""The same bodies through plain pika: three quorum queues in a row, nothing else.

    feed -> a -> hop -> b -> hop -> c -> hop -> counted

Each hop is a process with one blocking connection: consume with prefetch 256, publish, acknowledge;
no confirms, no headers, no validation. What is left is RabbitMQ and pika.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pika

from infra.amqp.local_broker import LocalBroker
from tests.benchmarks.path import cpu_seconds

QUEUES = ("a", "b", "c")


def hop(url: str, source: str, target: str, body_bytes: int, count: int) -> None:
    """Move `count` messages on, with a body of the given size."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=256)
    properties = pika.BasicProperties(delivery_mode=2)
    body = b"x" * body_bytes
    for number, (method, _, _) in enumerate(channel.consume(source), start=1):
        if target:
            channel.basic_publish("", target, body, properties)
        channel.basic_ack(method.delivery_tag)
        if number == count:
            break
    connection.close()


def measure(sizes: tuple[int, int, int], count: int) -> tuple[float, float]:
    """Messages per second end to end, and CPU milliseconds per message of all four processes and
    the broker.

    Args:
        sizes: Bytes of task, rollout and trajectory.
        count: How many of each.
    """
    with tempfile.TemporaryDirectory() as scratch:
        node = LocalBroker(Path(scratch) / "broker")
        url = node.start(timeout_s=120.0)
        connection = pika.BlockingConnection(pika.URLParameters(url))
        channel = connection.channel()
        for queue in QUEUES:
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
        hops = []
        for source, target, size in zip(QUEUES, ("b", "c", ""), (*sizes[1:], 0), strict=True):
            code = "import sys; from tests.benchmarks.raw_pika import hop; a = sys.argv; "
            code += "hop(a[1], a[2], a[3], int(a[4]), int(a[5]))"
            arguments = [url, source, target, str(size), str(count)]
            hops.append(subprocess.Popen([sys.executable, "-c", code, *arguments]))
        time.sleep(2.0)
        broker_before = cpu_seconds(node.pids[0])
        before = sum(cpu_seconds(process.pid) for process in hops) + broker_before
        own, started = time.process_time(), time.monotonic()
        body, properties = b"x" * sizes[0], pika.BasicProperties(delivery_mode=2)
        for _ in range(count):
            channel.basic_publish("", "a", body, properties)
        own = time.process_time() - own
        spent = own - before
        for process in hops:
            pid_cpu = cpu_seconds(process.pid)
            while process.poll() is None:
                pid_cpu = max(pid_cpu, cpu_seconds(process.pid))
                time.sleep(0.02)
            spent += pid_cpu
        wall_s = time.monotonic() - started
        spent += cpu_seconds(node.pids[0])
        connection.close()
        node.kill()
        return count / wall_s, 1000 * spent / count
