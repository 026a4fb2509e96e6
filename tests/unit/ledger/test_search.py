"""The search index: what it finds, whom it shows it to, and that it can be lost at any time."""

from __future__ import annotations

import sqlite3
import unicodedata
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeAlias

import pytest

from atlas.kernel.errors import LedgerUnavailable
from atlas.kernel.recall import Indexed, Passage, query_of
from atlas.ledger.search import SqliteIndex

Form: TypeAlias = Literal["NFC", "NFD"]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[SqliteIndex]:
    made = SqliteIndex(tmp_path / "index.db")
    yield made
    made.close()


def put(index: SqliteIndex, turn: int, *texts: str, scope: str = "ses_a", title: str = "", **run: object) -> None:
    passages = [
        Passage(f"t{turn}.{number}", 0, title, text, turn * 100 + number, is_retold=bool(run.get("is_retold")))
        for number, text in enumerate(texts)
    ]
    seq, is_over = int(str(run.get("seq", 9))), bool(run.get("is_over", True))
    assert index.add(scope, Indexed(f"run_{scope}_{turn}", turn, title, seq, is_over), passages, 0)


def find(index: SqliteIndex, words: str, scope: str = "ses_a", limit: int = 10) -> list[str]:
    return [one.passage.handle for one in index.find(scope, query_of(words), limit)]


def test_finds_words_in_any_form_and_case(index: SqliteIndex) -> None:
    put(index, 1, "The Kettles are boiling.", "Nothing here.")
    assert find(index, "boil kettle") == ["t1.0"]


@pytest.mark.parametrize(
    "told, asked",
    [
        ("Das Résumé liegt in Việt Nam, bei phở.", "phở résumé"),
        ("القهوة في الخزانة", "القَهْوَة"),
        ("Room ４４７１ is closed.", "4471"),
        ("커피포트는 계단 아래에 있다", "커피포트"),
        ("2024年Dockerを使う", "docker 2024"),
        ("हिन्दी में केतली सीढ़ी के नीचे है", "केतली"),
        ("กาน้ำร้อนอยู่ใต้บันได", "น้ำร้อน"),
        ("Мой чайник ещё горячий.", "мой еще"),
    ],
)
@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("asked_form", ["NFC", "NFD"])
def test_finds_words_however_they_are_encoded_and_gives_them_back_as_they_are(
    index: SqliteIndex, told: str, asked: str, form: Form, asked_form: Form
) -> None:
    told = unicodedata.normalize(form, told)
    put(index, 1, told, title=f"t1 {told}")
    put(index, 2, "मैं चाय कतल है", "อยู่ร่อน", "мои")
    found = index.find("ses_a", query_of(unicodedata.normalize(asked_form, asked)), 10)
    assert [(one.passage.handle, one.passage.text, one.passage.title) for one in found][:1] == [
        ("t1.0", told, f"t1 {told}")
    ]


def test_a_vowel_sign_tells_words_apart(index: SqliteIndex) -> None:
    put(index, 1, "केतली यहाँ")
    assert find(index, "कातला") == []
    assert find(index, "केतली") == ["t1.0"]


def test_finds_what_only_the_title_says(index: SqliteIndex) -> None:
    put(index, 1, "It came to seven.", title='t1 "Marigold briefing"')
    put(index, 2, "It came to nine.", title='t2 "Juniper briefing"')
    assert find(index, "marigold briefing") == ["t1.0", "t2.0"]


def test_finds_what_stood_beside_a_passage(index: SqliteIndex) -> None:
    passage = Passage("t1.1.1", 0, "", "12 degrees", 1, near='weather({"city":"Oslo"})')
    index.add("ses_a", Indexed("run_a", 1, "", 3, True), [passage], 0)
    assert find(index, "Oslo weather") == ["t1.1.1"]


def test_words_that_stand_together_weigh_more_than_words_apart(index: SqliteIndex) -> None:
    put(index, 1, "The brass kettle and the copper lantern. " * 3)
    put(
        index, 2, "Here is a much longer text in which only once somebody mentions the brass lantern, and then goes on."
    )
    put(index, 3, "The brass horn and the tin lantern. " * 3)
    assert find(index, "Where is the brass lantern?")[0] == "t2.0"


def test_of_equal_passages_the_newer_comes_first(index: SqliteIndex) -> None:
    put(index, 1, "The kettle is here.")
    put(index, 2, "The kettle is here.")
    assert find(index, "kettle") == ["t2.0", "t1.0"]


def test_what_was_retold_comes_after_what_was_told(index: SqliteIndex) -> None:
    put(index, 1, "In a rather long text about other things there is also a kettle somewhere.")
    put(index, 2, "kettle kettle kettle", is_retold=True)
    assert find(index, "kettle") == ["t1.0", "t2.0"]


def test_a_scope_sees_nothing_of_another(index: SqliteIndex) -> None:
    put(index, 1, "the kettle of a", scope="ses_a")
    put(index, 1, "the kettle of b", scope="ses_b")
    assert len(find(index, "kettle", "ses_a")) == 1
    assert find(index, "kettle", "ses_c") == []
    for mark in ("told1", "told2", "retold1", "retold2", "scope", "a", "b"):
        assert find(index, mark, "ses_a") == [] or mark in "ab"


@pytest.mark.parametrize("words", ["", "?!", '"', "* OR NEAR(", "the of and", "title:x", "日本語"])
def test_any_words_can_be_looked_for(index: SqliteIndex, words: str) -> None:
    put(index, 1, "the kettle")
    find(index, words)
    assert find(index, "kettle"), "what was looked for before has spoiled the index"


def test_the_reach_grows_over_turns_that_are_over(index: SqliteIndex) -> None:
    assert index.reach("ses_a") == 0
    put(index, 2, "second")
    assert index.reach("ses_a") == 0
    put(index, 1, "first")
    assert index.reach("ses_a") == 2
    put(index, 3, "third", is_over=False)
    assert index.reach("ses_a") == 2


def test_a_run_under_way_is_added_to_and_replaced_when_it_is_over(index: SqliteIndex) -> None:
    put(index, 1, "first words", seq=3, is_over=False)
    more = [Passage("t1.7", 0, "", "second words", 107)]
    assert index.add("ses_a", Indexed("run_ses_a_1", 1, "", 5, False), more, 3)
    assert find(index, "words") == ["t1.7", "t1.0"]
    put(index, 1, "other words", title="t1 done", seq=9)
    assert find(index, "words done") == ["t1.0"]
    assert index.titles("ses_a") == ["t1 done"]


def test_two_that_add_the_same_add_it_once(index: SqliteIndex) -> None:
    put(index, 1, "first words", seq=3, is_over=False)
    more = [Passage("t1.7", 0, "", "second words", 107)]
    assert index.add("ses_a", Indexed("run_ses_a_1", 1, "", 5, False), more, 3)
    assert not index.add("ses_a", Indexed("run_ses_a_1", 1, "", 5, False), more, 3)
    assert find(index, "second") == ["t1.7"]


def test_a_run_is_looked_up_by_its_turn(index: SqliteIndex) -> None:
    put(index, 1, "first", title="t1 one")
    put(index, 2, "second", title="t2 two")
    assert index.run("ses_a", 2) == Indexed("run_ses_a_2", 2, "t2 two", 9, True)
    assert index.run("ses_a", 3) is None
    assert index.run("ses_b", 2) is None
    assert index.titles("ses_a") == ["t2 two", "t1 one"]


def test_a_forgotten_run_is_not_found_and_has_to_be_read_again(index: SqliteIndex) -> None:
    put(index, 1, "the kettle")
    put(index, 2, "the teapot")
    index.forget("run_ses_a_1")
    assert find(index, "kettle") == []
    assert find(index, "teapot") == ["t2.0"]
    assert index.reach("ses_a") == 0
    index.forget("run_unknown")


def test_what_was_indexed_is_there_for_the_next_process(tmp_path: Path) -> None:
    first, second = SqliteIndex(tmp_path / "index.db"), SqliteIndex(tmp_path / "index.db")
    put(first, 1, "the kettle")
    assert find(second, "kettle") == ["t1.0"]
    first.close()
    second.close()
    second.close()


def test_many_threads_may_use_it_at_once(index: SqliteIndex) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda turn: put(index, turn, f"kettle number {turn}"), range(1, 41)))
        assert set(map(len, pool.map(lambda _: find(index, "kettle", limit=50), range(8)))) == {40}
    assert index.reach("ses_a") == 40


def test_a_broken_file_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    path.write_bytes(b"not a database at all" * 100)
    index = SqliteIndex(path)
    put(index, 1, "the kettle")
    assert find(index, "kettle") == ["t1.0"]
    index.close()


def test_a_file_that_breaks_while_it_is_used_costs_one_refusal(tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    index = SqliteIndex(path)
    for turn in range(1, 60):
        put(index, turn, f"kettle {turn} " * 50)
    index.close()
    path.write_bytes(path.read_bytes()[:4096] + b"\xff" * 200_000)
    with pytest.raises(LedgerUnavailable) as refused:
        find(index, "kettle")
    assert refused.value.reason == "index_unavailable"
    assert "delete" in refused.value.hint
    assert find(index, "kettle") == []
    put(index, 1, "the kettle")
    assert find(index, "kettle") == ["t1.0"]
    index.close()


def test_a_file_of_another_shape_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    old = sqlite3.connect(path)
    old.execute("CREATE TABLE passage (text)")
    old.execute("PRAGMA user_version = 1")
    old.close()
    index = SqliteIndex(path)
    put(index, 1, "the kettle")
    assert find(index, "kettle") == ["t1.0"]
    index.close()


def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    index = SqliteIndex(tmp_path / "missing" / "index.db")
    with pytest.raises(LedgerUnavailable) as refused:
        index.reach("ses_a")
    assert refused.value.reason == "index_unavailable"
