"""Hops between threads keep order, lose nothing and wake the loop once for many."""

import asyncio
import threading

import pytest

from infra.amqp.io.mailbox import Mailbox, Reply, SharedReply


async def test_calls_from_many_threads_all_run_in_their_order() -> None:
    seen: list[tuple[int, int]] = []
    mailbox = Mailbox(asyncio.get_running_loop())

    def post(number: int) -> None:
        for index in range(500):
            mailbox.post(seen.append, (number, index))

    threads = [threading.Thread(target=post, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or len(seen) < 2000:
        await asyncio.sleep(0.001)
    for number in range(4):
        assert [index for n, index in seen if n == number] == list(range(500))


async def test_many_posts_make_one_batch() -> None:
    batches = 0
    ran = 0

    def after() -> None:
        nonlocal batches
        batches += 1

    def call() -> None:
        nonlocal ran
        ran += 1

    mailbox = Mailbox(asyncio.get_running_loop(), after=after)
    for _ in range(100):
        mailbox.post(call)
    assert ran == 0
    await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    assert (ran, batches) == (100, 1)


async def test_a_call_posted_by_a_call_runs_too() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    done = asyncio.Event()
    mailbox.post(mailbox.post, done.set)
    await asyncio.wait_for(done.wait(), 5)


async def test_a_call_that_raises_strands_none_behind_it() -> None:
    loop = asyncio.get_running_loop()
    reported: list[object] = []
    loop.set_exception_handler(lambda _loop, context: reported.append(context["exception"]))
    mailbox, done = Mailbox(loop), asyncio.Event()

    def fails() -> None:
        raise ValueError("broken")

    mailbox.post(fails)
    mailbox.post(done.set)
    await asyncio.wait_for(done.wait(), 5)
    assert [type(error) for error in reported] == [ValueError]


async def test_one_turn_of_another_loop_is_one_batch_and_waking_brings_it_forward() -> None:
    batches: list[int] = []
    seen: list[int] = []
    mailbox = Mailbox(asyncio.get_running_loop(), after=lambda: batches.append(len(seen)))

    async def burst(*, wake: bool) -> None:
        for number in range(50):
            mailbox.post(seen.append, number)
        if wake:
            mailbox.wake()
            return
        while len(seen) < 50:
            await asyncio.sleep(0.001)

    await asyncio.to_thread(asyncio.run, burst(wake=False))
    assert (seen, set(batches)) == (list(range(50)), {50})
    await asyncio.to_thread(asyncio.run, burst(wake=True))
    await asyncio.sleep(0)
    assert (seen, set(batches)) == ([*range(50), *range(50)], {50, 100})  # never in between


async def test_a_sender_whose_loop_ended_holds_nobody_else_up() -> None:
    seen: list[str] = []
    mailbox = Mailbox(asyncio.get_running_loop())

    async def post(text: str) -> None:
        mailbox.post(seen.append, text)

    await asyncio.to_thread(asyncio.run, post("first"))
    await asyncio.to_thread(asyncio.run, post("second"))
    mailbox.post(seen.append, "third")
    async with asyncio.timeout(5):
        while len(seen) < 3:
            await asyncio.sleep(0.001)
    assert seen == ["first", "second", "third"]


async def test_replies_are_settled_once() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    reply = Reply(mailbox)
    reply.succeed(1)
    reply.fail(ValueError())
    assert await reply == 1
    cancelled = Reply(mailbox)
    cancelled.cancel()
    cancelled.succeed(2)
    await asyncio.sleep(0.01)
    assert cancelled.cancelled()


def test_a_closed_loop_swallows_calls() -> None:
    loop = asyncio.new_event_loop()
    mailbox = Mailbox(loop)
    loop.close()
    mailbox.post(print)
    mailbox.post(print)


async def test_a_shared_reply_waits_for_the_last_success() -> None:
    reply = SharedReply(Mailbox(asyncio.get_running_loop()), 3)
    for _ in range(2):
        reply.succeed()
    await asyncio.sleep(0.02)
    assert not reply.done()
    reply.succeed()
    assert await asyncio.wait_for(reply, 5) is None


async def test_a_shared_reply_fails_with_the_first_failure() -> None:
    reply = SharedReply(Mailbox(asyncio.get_running_loop()), 3)
    reply.succeed()
    reply.fail(KeyError("first"))
    reply.fail(KeyError("second"))
    with pytest.raises(KeyError, match="first"):
        await asyncio.wait_for(reply, 5)
