"""An application that uses rq: its jobs, and what a developer does with them."""

import datetime
import os
import sys

import redis
import rq
from rq.job import Job

connection = redis.Redis(port=int(os.environ["PORT"]))


def mail(n, **options):
    connection.rpush("done", n)
    return {"sent": n}


def push():
    queue = rq.Queue("mail", connection=connection, default_timeout=77)
    for i in range(40):
        queue.enqueue(mail, f"now {i}", html=b"<b>\x00\xff" + bytes([i]), amount=i / 7, job_id=f"id {i}" if i % 2 else None,
                      meta={"tags": {"ünï", i}}, result_ttl=900, ttl=7000 if i % 5 == 0 else None,
                      retry=rq.Retry(max=3, interval=[1, 2]) if i % 7 == 0 else None, description="mail\n")
    for i in range(10):
        queue.enqueue_in(datetime.timedelta(seconds=3600 + i), mail, f"later {i}")
    for i in range(5):
        queue.enqueue_in(datetime.timedelta(seconds=1), mail, f"soon {i}")
    first = queue.enqueue(mail, "first")
    queue.enqueue(mail, "second", depends_on=first)


def family():
    mails, reports = rq.Queue("mail", connection=connection), rq.Queue("reports", connection=connection)
    first = mails.enqueue(mail, "first")
    second = mails.enqueue(mail, "second", depends_on=first)
    mails.enqueue(mail, "third", depends_on=[first, second])
    reports.enqueue(mail, "report", depends_on=second)
    started = mails.enqueue(mail, "started")
    mails.remove(started)
    mails.started_job_registry.add(started, 600)


def work():
    queue = rq.Queue("mail", connection=connection)
    for job_id in queue.scheduled_job_registry.get_job_ids():
        connection.zadd("rq:scheduled:mail", {job_id: 1})
    rq.SimpleWorker([queue], connection=connection).work(burst=True, with_scheduler=True)


def consume():
    """A worker for jobmesh, for the same functions."""
    for _ in range(int(sys.argv[2])):
        (_, job_id, body), = connection.execute_command("GETJOB", "TIMEOUT", 5000, "FROM", "mail")
        record = unpack(body)
        job = Job(record[b"id"].decode(), connection=connection)
        job.restore(record[b"hash"])
        job.func(*job.args, **job.kwargs)
        connection.execute_command("ACKJOB", job_id)


def unpack(body):
    """msgpack.unpackb(body, raw=True), as far as it is needed here."""
    def take(n):
        nonlocal at
        at += n
        return body[at - n:at]

    def value():
        kind = take(1)[0]
        if kind < 0x80:
            return kind
        if kind & 0xf0 == 0x80:
            return {value(): value() for _ in range(kind & 15)}
        if kind & 0xf0 == 0x90:
            return [value() for _ in range(kind & 15)]
        if kind & 0xe0 == 0xa0:
            return take(kind & 31)
        if kind in (0xd9, 0xda, 0xdb):
            return take(int.from_bytes(take(1 << kind - 0xd9), "big"))
        if kind in (0xcc, 0xcd, 0xce, 0xcf):
            return int.from_bytes(take(1 << kind - 0xcc), "big")
        if kind in (0xde, 0xdf):
            return {value(): value() for _ in range(int.from_bytes(take(2 << kind - 0xde), "big"))}
        raise ValueError(hex(kind))

    at = 0
    return value()


if __name__ == "__main__":
    import rq_app  # so that jobs name a module that workers can import

    getattr(rq_app, sys.argv[1])()
