"""The hub that counts commits, and the folder of the sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from pathlib import Path
from typing import Any

from atlas.ledger.wake import Hub, Listener, Peers, Subscription, _bind_in_folder, wake_folder


def test_bumps_from_other_threads_are_never_missed() -> None:
    hub = Hub()
    rounds = 300

    async def follow(step: threading.Semaphore) -> int:
        subscription = Subscription(hub, None)
        for number in range(rounds):
            step.release()  # the other thread bumps exactly once for each release
            assert await subscription.wait(10), f"bump {number} was missed"
        return rounds

    step = threading.Semaphore(0)

    def bump() -> None:
        for _ in range(rounds):
            step.acquire()
            hub.bump()

    thread = threading.Thread(target=bump)
    thread.start()
    assert asyncio.run(follow(step)) == rounds
    thread.join()


def test_subscribers_on_several_loops_are_woken() -> None:
    hub = Hub()
    ready = threading.Barrier(4)
    woken: list[bool] = []

    def wait() -> None:
        async def subscribe() -> None:
            subscription = Subscription(hub, None)
            ready.wait()
            woken.append(await subscription.wait(10))

        asyncio.run(subscribe())

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    ready.wait()
    hub.bump()
    for thread in threads:
        thread.join()
    assert woken == [True] * 3


def test_a_loop_that_ended_disturbs_nobody() -> None:
    hub = Hub()

    async def leave() -> None:
        assert hub.register(hub.count, asyncio.get_running_loop()) is not None

    asyncio.run(leave())
    hub.bump()
    assert hub.count == 1


def test_the_check_is_made_once_for_all_who_wait() -> None:
    hub = Hub()
    checks: list[int] = []

    async def check() -> None:
        checks.append(1)
        hub.bump()

    async def wait_all() -> None:
        subscriptions = [Subscription(hub, check) for _ in range(20)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(subscription.wait(10)) for subscription in subscriptions]
        assert all(task.result() for task in tasks)

    asyncio.run(wait_all())
    assert len(checks) == 1


def test_sockets_lie_beside_the_database_when_their_address_fits(tmp_path: Path) -> None:
    short = Path("/tmp/v/.atlas/ledger.db")
    assert wake_folder(short).name == "wake"
    deep = Path("/tmp") / ("d" * 90) / "ledger.db"
    assert len(str(wake_folder(deep))) < 70
    assert wake_folder(deep) == wake_folder(deep)
    assert wake_folder(deep) != wake_folder(deep.parent / "more" / "ledger.db")


def test_only_those_who_want_it_hear_of_commits_without_work(tmp_path: Path) -> None:
    work, every, unused = Hub(), Hub(), Hub()
    there = Peers(tmp_path / "ledger.db", "there", work, every)
    here = Peers(tmp_path / "ledger.db", "here", unused, unused)
    there.work.bind()
    there.every.bind()

    async def hear() -> None:
        of_work, of_all = Subscription(work, None), Subscription(every, None)
        here.announce(has_work=False)
        assert await of_all.wait(10)
        assert not await of_work.wait(0.05)
        here.announce(has_work=True)
        assert await of_work.wait(10)
        assert await of_all.wait(10)
        assert unused.count == 0

    asyncio.run(hear())
    there.close()
    here.close()
    assert not wake_folder(tmp_path / "ledger.db").exists()


def test_only_the_last_one_takes_the_folder_away(tmp_path: Path) -> None:
    database = tmp_path / ("d" * 100) / "ledger.db"  # so deep that the sockets lie in the temporary folder
    folder = wake_folder(database)
    here, there = (Peers(database, nonce, Hub(), Hub()) for nonce in ("here", "there"))
    here.work.bind()
    there.work.bind()
    here.close()
    assert [path.name.partition("-")[2] for path in folder.iterdir()] == ["there.w.sock"]
    there.close()
    assert not folder.exists()


class Unlucky(socket.socket):
    """A socket before whose binding other processes end, and take the empty folder away."""

    ends = 5

    def bind(self, address: Any) -> None:
        if self.ends:
            self.ends -= 1
            Path(address).parent.rmdir()
        super().bind(address)


def test_a_folder_that_is_taken_away_meanwhile_is_made_again(tmp_path: Path) -> None:
    path = wake_folder(tmp_path / "ledger.db") / "1-here.w.sock"
    with Unlucky(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        _bind_in_folder(listener, path)
        assert path.is_socket()


def test_a_listener_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "wake").write_text("in the way")
    listener = Listener(tmp_path / "wake" / "x.sock", Hub())
    listener.bind()
    listener.close()
    assert (tmp_path / "wake").read_text() == "in the way"


def test_a_full_queue_of_news_does_not_stop_the_sender(tmp_path: Path) -> None:
    work, every = Hub(), Hub()
    here = Peers(tmp_path / "ledger.db", "here", work, every)
    folder = wake_folder(tmp_path / "ledger.db")
    folder.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(folder / "1-deaf.w.sock"))
        for _ in range(1000):
            here.announce(has_work=True)
        deaf.setblocking(False)
        heard = 0
        with contextlib.suppress(BlockingIOError):
            while deaf.recv(64):
                heard += 1
    here.close()
    assert 0 < heard < 1000  # it was full, and nobody waited for it
