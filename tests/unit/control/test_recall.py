"""Recall over a recorded session: exact by handle, honest by search, bounded always."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from atlas.control.account import done_of, session_before
from atlas.control.history import load
from atlas.control.recall import Recall
from atlas.kernel.context import Live, Session, build
from atlas.kernel.contract import Context
from atlas.kernel.digest import close, title_of
from atlas.kernel.errors import ErrorRecord, LimitRefused
from atlas.kernel.event import (
    Body,
    CallAnswered,
    EffectReceived,
    ForkPoint,
    Payload,
    RunCreated,
    RunEnded,
    TurnClosed,
    TurnSteered,
    draft,
)
from atlas.kernel.model import Reply, Text, ToolCall, ToolResult, Usage
from atlas.kernel.run import Append, Lease, NewRun
from atlas.kernel.token import Heard, limits_of, text_size
from atlas.kernel.turn import Turn, answered, note_of, noted, received, windowed
from atlas.ledger.memory import MemoryLedger
from atlas.ledger.search import SqliteIndex
from atlas.testing.clock import FakeClock

LIMIT, RATE = 1_000, 3.0
NEXT = re.compile(r"\n\[\d+ bytes follow: recall\(handle='[^']+', start=(\d+)\)\]$")
HANDLE = re.compile(r"handle='([^']+)'|\b(t\d+(?:\.\d+){0,2})\b")

Answer = str | ErrorRecord


class Recorder:
    """A session as the loop records it, turn by turn."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.ledger = MemoryLedger(self.clock)
        self.index = SqliteIndex(":memory:")
        self.recall = Recall(self.ledger, self.index)
        self.runs: list[str] = []
        self.lease: Lease

    async def begin(self, user: Any, session: str = "ses_a", **changes: Any) -> str:
        run_id = await self.queue(user, session, **changes)
        [claimed] = await self.ledger.claim("me", limit=1, lease_s=600, max_running=99, run_id=run_id)
        self.lease = claimed.lease
        return run_id

    async def queue(self, user: Any, session: str = "ses_a", **changes: Any) -> str:
        run_id = f"run_{len(self.runs) + 1:04}"
        self.runs.append(run_id)
        raw = msgspec.json.encode({"text": user} if isinstance(user, str) else user)
        fork, parent = changes.pop("fork", None), changes.pop("parent_run_id", "")
        left, at = changes.pop("leaves", ("", 0))
        created = RunCreated("a", "1", Payload(msgspec.Raw(raw)), "snap", session, "seed", "prompt", fork=fork)
        new = NewRun(run_id, session, "a", "1", "snap", "owner", self._draft(created), run_id, parent_run_id=parent)
        new = replace(new, branch_of=left, branch_turn=at)
        await self.ledger.submit(new)
        return run_id

    async def say(self, step: int, text: str = "", *calls: tuple[str, Any], stop: str = "") -> None:
        made = [ToolCall(f"c{number}", name, _json(args)) for number, (name, args) in enumerate(calls)]
        parts = (*([Text(text)] if text else []), *made)
        reply = Reply(parts, stop or ("tool_call" if made else "end"), Usage(), "one:model")
        raw = msgspec.json.encode(Heard(reply, "one:model", (), 1_000))
        await self.write(EffectReceived(f"model:{step}", Payload(msgspec.Raw(raw))))

    async def answer(self, step: int, call: int, name: str, answer: Answer) -> None:
        effect = f"tool:{step}.{call}:{name}"
        if isinstance(answer, ErrorRecord):
            await self.write(EffectReceived(effect, error=answer))
            return
        raw = msgspec.json.encode({"text": answer})
        payload = Payload(msgspec.Raw(raw)) if len(raw) < 60_000 else Payload(blob=await self.ledger.put_blob(raw))
        await self.write(EffectReceived(effect, payload))

    async def end(self) -> None:
        row = await self.ledger.run(self.runs[-1])
        bodies: list[Body] = [RunEnded("succeeded")]
        if row.turn:
            before = await session_before(self.ledger, row.session_id, row.turn)
            told = await load(self.ledger, row.run_id)
            done = await done_of(self.ledger, row.turn, told, "succeeded")
            raw = msgspec.Raw(msgspec.json.encode(close(before, done, 2)))
            bodies.insert(0, TurnClosed(row.turn, title_of(done), Payload(raw)))
        await self.write(*bodies, state="succeeded")

    async def turn(self, user: str, answer: str, *results: Answer, tool: str = "fetch") -> None:
        """A whole turn: one call for each result, then the answer."""
        await self.begin(user)
        for step, result in enumerate(results, start=1):
            await self.say(step, "", (tool, {"number": step}))
            await self.answer(step, 1, tool, result)
        await self.say(len(results) + 1, answer)
        await self.end()

    async def write(self, *bodies: Body, state: Any = None) -> None:
        await self.ledger.append(Append(self.lease, tuple(map(self._draft, bodies)), state=state))

    async def show(self, handle: str, start: int = 0, limit: int = LIMIT) -> str:
        page = (await self.recall.by_handle(self.runs[-1], handle, start, limit, RATE)).text
        assert text_size(page) <= limit * RATE
        return page

    async def whole(self, handle: str, limit: int = LIMIT) -> str:
        """Everything under a handle, page by page as each page says."""
        text, start = "", 0
        while True:
            page = (await self.show(handle, start, limit)).partition(":\n")[2]
            more = NEXT.search(page)
            text += page[: more.start()] if more else page
            if more is None:
                return text
            start = int(more.group(1))

    async def find(self, words: str, limit: int = LIMIT) -> str:
        page = await self.recall.by_words(self.runs[-1], words, limit, RATE)
        assert text_size(page) <= limit * RATE
        return page

    def _draft(self, body: Body) -> Any:
        return draft(body, self.clock.now_us(), "owner")


def _json(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def recorded(work: Callable[[Recorder], Awaitable[None]]) -> None:
    async def main() -> None:
        recorder = Recorder()
        await recorder.ledger.open()
        try:
            await work(recorder)
        finally:
            recorder.index.close()
            await recorder.ledger.close()

    asyncio.run(main())


def test_every_kind_of_thing_comes_back_exactly() -> None:
    async def work(it: Recorder) -> None:
        long = "".join(f'línea {number} "quoted"\n' for number in range(3_000))
        await it.begin("find the kettle")
        await it.say(1, "Let me look.", ("fetch", {"name": "a"}), ("fetch", {"name": "b"}), ("nope", "{broken"))
        await it.answer(1, 1, "fetch", "a result")
        await it.answer(1, 2, "fetch", ErrorRecord("x", "it is gone", "look elsewhere"))
        await it.say(2, "", ("fetch", {"name": "long"}))
        await it.answer(2, 1, "fetch", long)
        await it.say(3, "under the stair")
        await it.end()
        await it.begin("next")
        assert await it.whole("t1.0") == "find the kettle"
        assert await it.whole("t1.1.1") == "a result"
        assert await it.whole("t1.1.2") == "it is gone (look elsewhere)"
        assert await it.whole("t1.1.3") == "nope({broken)"
        assert await it.whole("t1.2.1") == long
        assert await it.whole("t1.2.1", limit=100) == long
        assert await it.whole("t1.3") == "under the stair"
        asked = 'Let me look.\nfetch({"name":"a"})\nfetch({"name":"b"})\nnope({broken)'
        assert (
            await it.whole("t1.1") == f"{asked}\n[t1.1.1 fetch]\na result\n[t1.1.2 fetch]\nit is gone (look elsewhere)"
        )

    recorded(work)


def test_a_page_says_who_is_behind_it() -> None:
    async def work(it: Recorder) -> None:
        await it.turn("the words", "the answer", "the result")
        await it.begin("next")
        assert (await it.show("t1.0")).startswith("t1.0 (user), bytes 0 to 9 of 9:")
        assert (await it.show("t1.1.1")).startswith("t1.1.1 (observed)")
        assert (await it.show("t1.2")).startswith("t1.2 (claimed)")

    recorded(work)


def test_a_note_that_was_taken_is_shown_as_noted_and_one_that_was_refused_is_not() -> None:
    async def work(it: Recorder) -> None:
        await it.begin("go")
        note = {"kind": "fact", "key": "kettle", "text": "it leaks"}
        await it.say(1, "", ("note", note), ("note", {**note, "importance": "high"}), ("nope", {}))
        await it.write(CallAnswered(1, 2, Payload(msgspec.Raw(b'"They do not fit."'))))
        await it.say(2, "done")
        await it.end()
        await it.begin("next")
        assert (await it.show("t1.1.1")).startswith("t1.1.1 (noted)")
        assert (await it.show("t1.1.2")).startswith("t1.1.2 (observed)")
        assert (await it.show("t1.1.3")).startswith("t1.1.3 (recorded)")

    recorded(work)


def test_a_hit_says_who_is_behind_it_as_its_page_does() -> None:
    async def work(it: Recorder) -> None:
        await it.begin("the kettle of the user")
        await it.say(1, "the kettle of the model", ("fetch", {"name": "a"}), ("nope", {}))
        await it.answer(1, 1, "fetch", "the kettle of the tool")
        await it.write(CallAnswered(1, 2, Payload(msgspec.Raw(b'"There is no kettle nope."'))))
        await it.say(2, "done")
        await it.write(TurnSteered("should_continue_after_stop", 2, "continue", "gate", text="the kettle of the hook"))
        await it.say(3, "a last one")
        await it.end()
        await it.begin("next")
        hits = re.findall(r"recall\(handle='([^']+)'\) \((\w+)\)", await it.find("kettle"))
        assert {("t1.0", "user"), ("t1.1", "claimed"), ("t1.1.1", "observed"), ("t1.2.1", "observed")} <= set(hits)
        for handle, who in hits:
            assert (await it.show(handle)).startswith(f"{handle} ({who}), bytes")

    recorded(work)


def test_a_turn_is_shown_as_a_list_of_what_can_be_opened() -> None:
    async def work(it: Recorder) -> None:
        await it.turn("the words", "the answer", "r" * 5_000)
        await it.begin("next")
        lines = (await it.whole("t1")).splitlines()
        assert lines[0] == 't1 "the words" fetch -> the answer'
        assert [line.split()[0] for line in lines[1:]] == ["t1.0", "t1.1", "t1.1.1", "t1.2"]
        assert lines[3].endswith("[5000 bytes]")

    recorded(work)


@pytest.mark.parametrize("handle", ["t2", "t9", "t0", "t1.7", "t1.1.2", "nonsense", "", "../../etc"])
def test_what_is_not_there_is_said_to_be_not_there(handle: str) -> None:
    async def work(it: Recorder) -> None:
        await it.turn("the words", "the answer", "the result")
        await it.begin("next")
        page = await it.show("t1" if handle == "t2" else handle)
        assert page.startswith("There is no ") == (handle != "t2")

    recorded(work)


def test_nothing_of_a_later_turn_is_shown() -> None:
    async def work(it: Recorder) -> None:
        await it.turn("first", "one")
        await it.turn("second", "two")
        await it.turn("third", "three")
        assert "t2.0" in await it.find("second")
        for early in it.runs[:2]:
            assert (await it.recall.by_handle(early, "t3.0", 0, LIMIT, RATE)).text.startswith("There is no ")
            assert (await it.recall.by_words(early, "third", LIMIT, RATE)).startswith("Nothing")

    recorded(work)


def test_search_reads_its_own_turns_writes_but_not_its_question_nor_its_recalls() -> None:
    async def work(it: Recorder) -> None:
        await it.turn("about the garden", "noted")
        await it.begin("where is the kettle?")
        await it.say(1, "", ("recall", {"find": "where kettle"}), ("fetch", {"name": "cellar"}))
        await it.answer(1, 1, "recall", "the kettle was not found")
        assert await it.find("kettle") == "Nothing recorded matches these words. Try others."
        await it.answer(1, 2, "fetch", "the kettle stands on the shelf")
        assert "handle='t2.1.2'" in await it.find("kettle")
        assert "t2.0" not in await it.find("kettle")
        assert "t2.1.1" not in await it.find("kettle found")
        await it.say(2, "it is on the shelf")
        await it.end()
        await it.begin("and now?")
        found = await it.find("kettle shelf")
        assert "handle='t2.1.2'" in found
        assert "handle='t2.1.1'" not in found
        assert "(this turn)" not in found

    recorded(work)


def test_search_looks_into_blobs_and_opens_the_place() -> None:
    async def work(it: Recorder) -> None:
        await it.turn(
            "get it", "here", f"{'filler words go on. ' * 3_000}The brass lantern is at Q7. {'more of it. ' * 3_000}"
        )
        await it.begin("next")
        found = re.search(
            r"recall\(handle='(t1\.1\.1)', start=(\d+)\) \(observed\) The brass lantern", await it.find("brass lantern")
        )
        assert found is not None
        assert "The brass lantern is at Q7." in await it.show(found.group(1), int(found.group(2)))

    recorded(work)


def test_search_opens_the_place_in_what_was_asked_for_whatever_stands_around_it() -> None:
    async def work(it: Recorder) -> None:
        await it.begin("tidy up")
        letter = f"{'filler words go on. ' * 300}The brass lantern is at Q7. {'more of it. ' * 300}"
        looks = ("recall", {"find": "nothing of that kind"})
        await it.say(1, "I send it.", looks, ("fetch", {"name": "list"}), ("send", {"letter": letter}))
        await it.answer(1, 3, "send", "sent")
        await it.answer(1, 1, "recall", "nothing")
        await it.answer(1, 2, "fetch", "of the list " * 2_000)
        await it.end()
        await it.begin("next")
        hit = await it.find("brass lantern")
        found = re.search(r"recall\(handle='(t1\.1)', start=(\d+)\) \(claimed\) The brass lantern", hit)
        assert found is not None, hit
        assert "The brass lantern is at Q7." in await it.show(found.group(1), int(found.group(2)))

    recorded(work)


@pytest.mark.parametrize(
    "told, question",
    [
        ("水壶在楼梯下面的柜子里。钥匙在红色的盒子里。", "钥匙在哪里"),
        ("やかんは階段の下にあります。鍵は赤い箱の中です。", "赤い箱はどこですか"),
        ("주전자는 계단 아래에 있고 열쇠는 상자에 있습니다.", "열쇠 어디"),
        ("กาต้มน้ำอยู่ใต้บันได", "บันไดอยู่ที่ไหน"),
        ("चायदानी सीढ़ी के नीचे है", "चायदानी कहाँ"),
        ("Чайник стоит под лестницей", "где чайник"),
        ("das gelbe Häuschen, café crème", "HAUSCHEN"),
        ("die Tür in der Großen Straße", "grosse strasse"),
    ],
)
def test_search_finds_words_of_any_script(told: str, question: str) -> None:
    async def work(it: Recorder) -> None:
        await it.turn("look", "ok", told)
        for other in ("别的东西在别的地方", "ほかのもの", "다른 것", "อย่างอื่น", "कुछ और", "другое", "etwas anderes"):
            await it.turn("look", "ok", other)
        await it.begin("next")
        first = next(line for line in (await it.find(question)).splitlines() if line.startswith("recall("))
        assert first.startswith("recall(handle='t1.1.1') (observed) ")
        assert first.partition(" (observed) ")[2] in told

    recorded(work)


def test_of_two_statements_the_newer_is_named_first() -> None:
    async def work(it: Recorder) -> None:
        await it.turn("the kettle is in the cellar", "ok")
        await it.turn("other things", "ok")
        await it.turn("the kettle is in the attic", "ok")
        await it.begin("next")
        found = await it.find("kettle")
        assert found.index("t3.0") < found.index("t1.0")

    recorded(work)


def test_of_many_statements_the_newest_is_named_first_however_long_it_is() -> None:
    async def work(it: Recorder) -> None:
        for number in range(1, 41):
            await it.turn(f"{'words and ' * (number % 7)}the kettle is in room {number}", "ok")
        await it.turn(f"{'other words and ' * 20}the kettle is in the attic", "ok")
        await it.turn("the lantern is in the attic", "ok")
        await it.begin("next")
        found = re.findall(r"handle='(t\d+)\.0'", await it.find("in which room is the kettle?"))
        assert found[:3] == ["t40", "t39", "t38"]
        found = re.findall(r"handle='(t\d+)\.0'", await it.find("kettle"))
        assert found[:3] == ["t41", "t40", "t39"]

    recorded(work)


def test_what_was_only_retold_does_not_hide_what_was_told() -> None:
    async def work(it: Recorder) -> None:
        await it.turn("we put the brass lantern into box nine, as I said", "ok")
        for number in range(12):
            await it.turn(f"Which code belongs to the thing {number}?", "I do not know", "nothing", tool="recall")
        await it.begin("Which code belongs to the brass lantern?")
        found = await it.find("Which code belongs to the brass lantern?")
        assert "handle='t1.0'" in found
        assert len(re.findall(r"handle='t(?:[2-9]|1\d)", found)) == 2

    recorded(work)


def test_turns_and_notes_have_handles_too() -> None:
    async def work(it: Recorder) -> None:
        await it.begin("first")
        await it.say(1, "", ("note", {"kind": "plan", "key": "a", "text": "paint the fence"}))
        await it.say(2, "", ("note", {"kind": "fact", "key": "b", "text": "it is red " * 200}))
        await it.say(3, "done")
        await it.end()
        await it.begin("second")
        await it.say(1, "", ("note", {"kind": "plan", "key": "a", "text": "", "status": "done"}))
        notes = await it.whole("notes")
        assert "paint the fence" not in notes
        handle = re.search(r"recall\(handle='(t1\.2\.1)'\)", notes)
        assert handle is not None
        assert "it is red " * 200 in await it.whole("t1.2.1")
        await it.say(2, "done")
        await it.end()
        await it.begin("third")
        assert (await it.whole("turns")).splitlines() == ['t2 "second" -> done', 't1 "first" -> done']

    recorded(work)


def test_a_fork_knows_what_it_continues() -> None:
    async def work(it: Recorder) -> None:
        await it.begin("go")
        source = it.runs[-1]
        await it.say(1, "", ("fetch", {"name": "a"}))
        await it.answer(1, 1, "fetch", "the kettle is under the stair")
        events = await it.ledger.events(source)
        await it.begin("go", "ses_branch", fork=ForkPoint(source, events[-1].seq, events[-1].hash.hex()))
        assert await it.whole("t1.1.1") == "the kettle is under the stair"
        assert "t1.1.1" in await it.find("kettle")

    recorded(work)


def test_a_branch_knows_what_stood_before_it_and_nothing_that_came_later() -> None:
    async def work(it: Recorder) -> None:
        await it.begin("the kettle is in the cellar")
        await it.say(1, "", ("note", {"kind": "mission", "key": "m", "text": "never forget the lantern"}))
        await it.say(2, "ok")
        await it.end()
        await it.turn("the teapot is on the shelf", "ok", "a result")
        for number in range(3, 60):
            await it.turn(f"the kettle, the teapot and the lantern are gone, {number}", "ok")
        assert "gone" in await it.find("kettle teapot"), "by now all of it is indexed"
        assert len((await it.whole("turns")).splitlines()) == 58
        await it.begin("where is the kettle?", "ses_b", leaves=("ses_a", 3))
        assert (await it.ledger.run(it.runs[-1])).turn == 3
        session = await session_before(it.ledger, "ses_b", 3)
        assert (session.turns, [said.turn for said in session.recent]) == (2, [1, 2])
        assert await it.whole("t1.0") == "the kettle is in the cellar"
        assert await it.whole("t2.1.1") == "a result"
        assert await it.whole("t3.0") == "where is the kettle?"
        assert (await it.show("t4.0")).startswith("There is no ")
        assert "never forget the lantern" in await it.whole("notes")
        assert [line.split()[0] for line in (await it.whole("turns")).splitlines()] == ["t2", "t1"]
        found = await it.find("kettle teapot")
        assert "t1.0" in found
        assert "t2.0" in found
        assert "gone" not in found
        await it.say(1, "it is in the cellar")
        await it.end()

        await it.begin("and the teapot?", "ses_b")
        assert await it.whole("t3.1") == "it is in the cellar"
        assert [line.split()[0] for line in (await it.whole("turns")).splitlines()] == ["t3", "t2", "t1"]
        assert "gone" not in await it.find("kettle teapot")
        await it.say(1, "on the shelf")
        await it.end()

        await it.begin("and the lantern?", "ses_c", leaves=("ses_b", 4))
        assert await it.whole("t3.1") == "it is in the cellar"
        assert await it.whole("t1.0") == "the kettle is in the cellar"
        assert await it.whole("t4.0") == "and the lantern?"
        await it.end()
        await it.begin("where else?", "ses_d", leaves=("ses_b", 3))
        assert await it.whole("t2.0") == "the teapot is on the shelf"
        assert await it.whole("t3.0") == "where else?"
        assert (await session_before(it.ledger, "ses_d", 3)).turns == 2

    recorded(work)


def test_search_in_a_branch_finds_what_many_later_turns_of_the_session_it_left_say_better() -> None:
    async def work(it: Recorder) -> None:
        await it.turn("somewhere in a long sentence of other words there is a kettle", "ok")
        for _ in range(120):
            await it.turn("kettle kettle", "kettle")
            await it.turn("which?", "a kettle", "kettle", tool="recall")
        await it.begin("where?", "ses_b", leaves=("ses_a", 2))
        assert "handle='t1.0'" in await it.find("kettle")

    recorded(work)


def test_what_hooks_said_to_the_model_comes_back_and_is_found() -> None:
    async def work(it: Recorder) -> None:
        words = Payload(msgspec.Raw(msgspec.json.encode("The kettle leaks. " * 300)))
        output = Payload(msgspec.Raw(msgspec.json.encode("1 failed")))
        await it.begin("go")
        await it.say(1, "", ("fetch", {"name": "a"}), ("fetch", {"name": "b"}))
        await it.write(TurnSteered("authorize_tool", 1, "deny", "gate", 1, "Not the pantry."))
        await it.write(TurnSteered("authorize_tool", 1, "deny", "gate", 2, "The kettle [...]", detail=words))
        await it.say(2, "done")
        await it.write(TurnSteered("should_continue_after_stop", 2, "continue", "gate", text="Look in the attic."))
        await it.say(3, "done")
        await it.write(
            TurnSteered("should_continue_after_stop", 3, "continue", "oracle", text="Put it right.", detail=output)
        )
        await it.say(4, "", ("fetch", {"name": "c"}))
        await it.answer(4, 1, "fetch", "a teapot")
        await it.write(TurnSteered("after_step", 4, "stop", "oracle", text="Still not right.", detail=output))
        for is_over in (False, True):
            if is_over:
                await it.end()
                await it.begin("next")
            assert await it.whole("t1.1.1") == "Not the pantry."
            assert await it.whole("t1.1.2") == "The kettle leaks. " * 300
            assert await it.whole("t1.2.1") == "Look in the attic."
            assert await it.whole("t1.2") == "done\n[t1.2.1 gate]\nLook in the attic."
            assert await it.whole("t1.3.1") == "1 failed"
            assert await it.whole("t1.3.2") == "Put it right."
            assert await it.whole("t1.4.1") == "a teapot"
            assert (await it.whole("t1.4.2"), await it.whole("t1.4.3")) == ("1 failed", "Still not right.")
            for sought, place in (("pantry", "t1.1.1"), ("kettle", "t1.1.2"), ("attic", "t1.2.1"), ("right", "t1.3.2")):
                assert f"handle='{place}'" in await it.find(sought), sought

    recorded(work)


def test_what_a_hook_said_does_not_make_a_turn_that_only_looked_back_news() -> None:
    async def work(it: Recorder) -> None:
        await it.turn("the brass lantern is in box nine", "ok")
        for number in range(4):
            await it.begin(f"where is the lantern? {number}")
            await it.say(1, "", ("recall", {"find": "lantern"}))
            await it.answer(1, 1, "recall", "nothing")
            await it.say(2, "the lantern? I do not know")
            await it.write(TurnSteered("should_continue_after_stop", 2, "continue", "gate", text="Look again."))
            await it.say(3, "I do not know")
            await it.end()
        await it.begin("next")
        assert len(re.findall(r"handle='t[2-5]", await it.find("where is the lantern?"))) == 2

    recorded(work)


def test_behind_a_changed_result_stands_what_the_model_got_and_then_the_original() -> None:
    async def work(it: Recorder) -> None:
        got = "".join(f"line {number}\n" for number in range(2_000))
        detail = Payload(msgspec.Raw(msgspec.json.encode({"text": got})))
        await it.begin("go")
        await it.say(1, "", ("fetch", {"name": "a"}))
        await it.answer(1, 1, "fetch", "the kettle is in the attic")
        assert "start" not in await it.find("kettle attic")
        await it.write(TurnSteered("transform_tool_result", 1, "change", "gate, other", 1, detail=detail))
        whole = await it.whole("t1.1.1")
        assert whole == f"{got}\n[Changed by gate, other. Before that it was:]\nthe kettle is in the attic"
        found = re.search(r"recall\(handle='t1\.1\.1', start=(\d+)\)", await it.find("kettle attic"))
        assert found is not None
        assert "the kettle is in the attic" in await it.show("t1.1.1", int(found.group(1)))

    recorded(work)


def test_a_child_sees_itself_and_nothing_of_its_session() -> None:
    async def work(it: Recorder) -> None:
        await it.turn("the secret kettle", "ok")
        parent = it.runs[-1]
        assert "t1.0" in await it.find("kettle")
        await it.begin("look for it", parent_run_id=parent)
        await it.say(1, "", ("fetch", {"name": "a"}))
        await it.answer(1, 1, "fetch", "a brass lantern")
        assert await it.whole("t0.1.1") == "a brass lantern"
        assert "t0.1.1" in await it.find("lantern")
        assert (await it.find("kettle")).startswith("Nothing")
        assert (await it.show("t1.0")).startswith("There is no ")
        await it.say(2, "it is in the cellar")
        await it.end()
        await it.begin("next")
        assert (await it.find("lantern")).startswith("Nothing"), "nor does its session see it"

    recorded(work)


def test_a_turn_begins_with_what_the_last_one_left_however_many_wait_behind_it() -> None:
    async def work(it: Recorder) -> None:
        await it.turn("first", "one")
        await it.turn("second", "two")
        for _ in range(30):
            await it.queue("later")
        session = await session_before(it.ledger, "ses_a", 3)
        assert [said.user for said in session.recent] == ["first", "second"]
        assert session.turns == 2
        assert await session_before(it.ledger, "ses_a", 1) == Session()

    recorded(work)


def test_an_index_that_was_lost_is_built_again() -> None:
    async def work(it: Recorder) -> None:
        for number in range(30):
            await it.turn(f"turn {number} about the kettle", "ok")
        await it.begin("next")
        before = await it.find("kettle")
        it.index.close()  # in memory: closing it loses everything
        assert await it.find("kettle") == before
        assert await it.whole("t7.0") == "turn 6 about the kettle"

    recorded(work)


def test_an_erased_event_is_gone_from_search_too() -> None:
    async def work(it: Recorder) -> None:
        await it.turn("first", "ok", "the kettle is under the stair")
        erased = it.runs[-1]
        await it.turn("second", "ok")
        await it.begin("next")
        assert "t1.1.1" in await it.find("kettle")
        [seq] = [event.seq for event in await it.ledger.events(erased) if b"kettle" in event.body]
        await it.ledger.erase(erased, seq)
        await it.recall.forget(erased)
        assert (await it.find("kettle")).startswith("Nothing")
        assert "t2" in await it.find("second")

    recorded(work)


def test_answers_fit_however_small_the_limit() -> None:
    async def work(it: Recorder) -> None:
        await it.turn("the kettle " * 300, "ok " * 300, '"\n' * 4_000)
        await it.begin("next")
        for limit in (64, 100, 333, 1_000):
            assert await it.whole("t1.1.1", limit) == '"\n' * 4_000
            assert "recall(handle='t1.0'" in await it.find("kettle", limit)

    recorded(work)


STEP = st.tuples(st.sampled_from(["fetch", "note", "nope", "recall"]), st.integers(0, 9_000), st.booleans())


@settings(max_examples=25, deadline=None)
@given(
    turns=st.lists(st.tuples(st.integers(1, 20_000), st.lists(STEP, max_size=12)), min_size=1, max_size=4),
    totals=st.lists(st.integers(1_200, 30_000), min_size=1, max_size=6),
)
def test_every_handle_that_any_budget_prints_brings_something_back(
    turns: list[tuple[int, list[tuple[str, int, bool]]]], totals: list[int]
) -> None:
    async def work(it: Recorder) -> None:
        for size, steps in turns:
            user = f"words {size} " + "u" * size
            run_id = await it.begin(user)
            row = await it.ledger.run(run_id)
            session = await session_before(it.ledger, "ses_a", row.turn)
            turn = Turn(row.turn, user)
            for step, (tool, length, fails) in enumerate(steps, start=1):
                turn = await take(it, turn, step, tool, length, fails)
                for total in totals:
                    await check(it, turn, session, total)
            await it.say(len(steps) + 1, "the answer " * (size % 300))
            await it.end()

    recorded(work)


async def take(it: Recorder, turn: Turn, step: int, tool: str, length: int, fails: bool) -> Turn:
    """One step of a turn, recorded and folded as the loop does."""
    args: Any = {"kind": "fact", "key": f"k{length % 5}", "text": "n" * length} if tool == "note" else {"number": step}
    await it.say(step, "", (tool, args))
    call = ToolCall("c0", tool, _json(args))
    text = "r" * length
    if tool in ("fetch", "recall"):
        await it.answer(step, 1, tool, ErrorRecord("x", text) if fails else text)
    note = note_of(call, f"{turn.handle}.{step}.1")
    turn = turn if note is None else noted(turn, note)
    turn = answered(turn, Reply((call,), "tool_call", Usage(), "one:model"))
    return received(turn, (ToolResult("c0", text, fails),), limits_of(Context()).at(RATE))


async def check(it: Recorder, turn: Turn, session: Session, total: int) -> None:
    limits = limits_of(Context(max_tokens=total))
    live = Live("balanced", ("You are the advisor.",), session=session)
    try:
        request = build(windowed(turn, limits.at(RATE).window), live, limits).request
    except LimitRefused:
        return
    for message in request.messages:
        for part in message.parts:
            if isinstance(part, Text | ToolResult):
                for named, bare in HANDLE.findall(part.text):
                    page = await it.show(named or bare)
                    assert not page.startswith("There is no "), (named or bare, total)
