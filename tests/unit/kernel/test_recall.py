"""Handles, passages, queries and ranking, without a store."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlas.kernel.recall import (
    HITS_RETOLD,
    OVERLAP,
    PASSAGE_SIZE,
    SNIPPET,
    Candidate,
    Handle,
    Passage,
    folded,
    gathered,
    parse_handle,
    passages,
    query_of,
    rank,
    spread,
)


def nfd(text: str) -> str:
    return unicodedata.normalize("NFD", text)


@pytest.mark.parametrize("text", ["t1", "t12.3", "t12.3.2", "t12.0", "t0.1"])
def test_a_handle_reads_as_it_is_written(text: str) -> None:
    handle = parse_handle(f" {text} ")
    assert handle is not None
    assert str(handle) == text


@pytest.mark.parametrize("text", ["", "t", "12", "t1.", "t1.2.3.4", "t-1", "turn 1", "t1.x", "t" + "9" * 40])
def test_what_is_no_handle_is_none(text: str) -> None:
    assert parse_handle(text) is None


def test_a_handle_knows_its_parts() -> None:
    assert parse_handle("t12.3.2") == Handle(12, 3, 2)


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=8_000))
def test_passages_cover_the_whole_text_from_where_they_say(text: str) -> None:
    data, end = text.encode(), 0
    for piece in passages(Passage("t1.1", 0, "title", text, 5)):
        assert piece.start <= end
        size = len(piece.text.encode())
        assert data[piece.start : piece.start + size].decode() == piece.text
        end = piece.start + size
    assert end == len(data)


def test_no_sentence_that_fits_the_overlap_is_cut_in_every_passage() -> None:
    sentences = [f"Sentence number {number} says something of its own." for number in range(300)]
    pieces = [piece.text for piece in passages(Passage("t1.1", 0, "", " ".join(sentences), 5))]
    assert len(pieces) > 8
    assert all(any(sentence in piece for piece in pieces) for sentence in sentences)
    assert all(piece.startswith("Sentence") for piece in pieces)
    assert all(len(piece) <= PASSAGE_SIZE for piece in pieces)
    assert max(map(len, sentences)) < OVERLAP


def test_a_query_keeps_what_carries_meaning_and_what_stands_together() -> None:
    query = query_of("Where did we put the brass lantern, and the brass key?")
    assert query.words == ("put", "brass", "lantern", "key")
    assert query.pairs == (("brass", "lantern"), ("brass", "key"))
    assert query_of("what is it").words == ("what", "is", "it")


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=200))
def test_a_text_that_was_spread_is_gathered_again_but_for_what_folding_changed(text: str) -> None:
    text = text.replace("\u200b", "")
    assert gathered(spread(text)) == folded(text)
    assert folded(folded(text)) == folded(text)


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=60))
def test_a_text_has_the_same_words_in_every_encoding_of_it(text: str) -> None:
    assert query_of(text) == query_of(nfd(text)) == query_of(folded(text))


@pytest.mark.parametrize(
    "one, other",
    [
        ("résumé Việt phở", nfd("résumé Việt phở")),
        ("커피포트는 계단", nfd("커피포트는 계단")),
        ("がぎ パン", nfd("がぎ パン")),
        ("resume naivete", "résumé naïveté"),
        ("القهوة أحمد", "القَهْوَة احمد"),
        ("שלום", "שָׁלוֹם"),
        ("καφες", "καφές"),
        ("еще", "ещё"),
        ("istanbul", "İstanbul"),
        ("daß Straße", "dass Strasse"),
        ("Łódź København", "lodz kobenhavn"),
        ("ERR 4471", "ＥＲＲ ４４７１"),
        ("コーヒー", "ｺｰﾋｰ"),
        ("file office", "ﬁle oﬃce"),
        ("हिन्दी \u0958लम", "हिन्दी \u0915\u093cलम"),
    ],
)
def test_a_word_is_the_same_however_it_is_encoded_or_accented(one: str, other: str) -> None:
    assert one != other
    assert query_of(one) == query_of(other)
    [found] = rank(query_of(one), [candidate("t1.1", f"Nothing here. And here: {other}. No.")], 5)
    assert found.snippet == f"And here: {other}. No."


@pytest.mark.parametrize(
    "one, other",
    [("мой", "мои"), ("की", "का"), ("केतली", "कतला"), ("กี่", "กู่"), ("か", "が"), ("가", "각"), ("ŋ", "n"), ("x²", "x2")],
)
def test_marks_that_make_another_word_are_kept(one: str, other: str) -> None:
    assert query_of(one) != query_of(other)
    assert query_of(nfd(one)) != query_of(nfd(other))


def test_a_word_written_with_vowel_signs_is_one_word() -> None:
    assert query_of("हिन्दी में केतली").words == ("हिन्दी", "में", "केतली")


def test_signs_beside_a_word_do_not_become_part_of_it() -> None:
    assert query_of("Kettle™ and lantern… №5").words == query_of("kettle lantern 5").words


def candidate(handle: str, text: str, score: float = 1.0, at: int = 1, title: str = "", **more: bool) -> Candidate:
    return Candidate(Passage(handle, 0, title or f"{handle} title", text, at, **more), score)


def test_a_hit_shows_the_sentence_that_shares_most() -> None:
    text = "Nothing here. " * 20 + "The kettle is under the stair. And so on."
    [found] = rank(query_of("kettle stair"), [candidate("t1.1", text)], 5)
    assert found.snippet == "The kettle is under the stair. And so on."
    long = candidate("t1.1", "kettle " * 400)
    assert len(rank(query_of("kettle"), [long], 5)[0].snippet) == SNIPPET


@pytest.mark.parametrize("gap", [", ", ","])
def test_a_hit_in_a_sentence_without_end_shows_the_place(gap: str) -> None:
    rows = [f'{{"item": "thing {number}"{gap}"shelf": {number}}}' for number in range(60)]
    rows[40] = f'{{"item": "brass kettle"{gap}"shelf": 777}}'
    [found] = rank(query_of("which shelf has the brass kettle?"), [candidate("t1.1.1", gap.join(rows))], 5)
    assert 'brass kettle"' in found.snippet
    assert '"shelf": 777' in found.snippet


def test_where_the_title_says_more_the_turn_is_the_hit_and_stands_once() -> None:
    title = 't7 "Prepare the Marigold briefing" -> done'
    found = rank(
        query_of("marigold briefing"),
        [candidate(f"t7.1.{number}", "It came to seven.", title=title) for number in range(1, 5)],
        5,
    )
    assert [(one.handle, one.snippet) for one in found] == [("t7", "")]


def test_of_what_shares_the_same_words_the_newest_comes_first_and_of_others_the_better() -> None:
    old = candidate("t1.0", "The kettle is in the cellar.", score=1.5, at=100_100)
    new = candidate("t9.0", "Among many other things: the kettle is in the attic.", score=1.0, at=100_900)
    better = candidate("t5.0", "The kettle of the stair.", score=1.2, at=100_500)
    worse = candidate("t8.0", "The stair is long, and nobody says why it is.", score=0.9, at=100_800)
    found = rank(query_of("kettle under the stair"), [new, worse, old, better], 5)
    assert [one.handle for one in found] == ["t9.0", "t5.0", "t1.0", "t8.0"]


def test_who_asks_again_does_not_take_the_place_of_who_told() -> None:
    told = candidate("t1.0", "The kettle is in the cellar.", 2.0, at=1)
    asked = [candidate(f"t{number}.0", "And the kettle is where?", 1.0, at=number) for number in range(5, 9)]
    found = rank(query_of("kettle"), [*asked, told], 5)
    assert [one.handle for one in found] == ["t1.0", "t8.0", "t7.0", "t6.0", "t5.0"]


def test_what_shares_no_word_stays_where_its_score_puts_it() -> None:
    found = rank(query_of("kettle"), [candidate("t1.0", "here", 2.0, at=1), candidate("t9.0", "there", 1.0, at=9)], 5)
    assert [one.handle for one in found] == ["t1.0", "t9.0"]


@pytest.mark.parametrize(
    "one, other", [("code", "codes"), ("price", "pricing"), ("study", "studies"), ("bus", "buses"), ("key", "keys")]
)
def test_a_hit_knows_the_usual_forms_of_a_word(one: str, other: str) -> None:
    text = f"Nothing of that. Here they say {other} twice. And no more."
    for asked, told in ((one, text), (other, text.replace(other, one))):
        [found] = rank(query_of(asked), [candidate("t1.1", told)], 5)
        assert found.snippet.startswith("Here they say")


def test_neither_one_text_nor_hearsay_fills_the_page() -> None:
    long = [candidate("t1.1.1", f"kettle number {number}", 2.0) for number in range(9)]
    retold = [candidate(f"t{number}.0", "which kettle was it", 2.0, is_retold=True) for number in range(20, 30)]
    other = candidate("t5.0", "the other kettle", 0.1)
    found = [one.handle for one in rank(query_of("kettle"), [*long, *retold, other], 8)]
    assert found.count("t1.1.1") == 2
    assert "t5.0" in found
    assert sum(handle in {f"t{number}.0" for number in range(20, 30)} for handle in found) == HITS_RETOLD


def test_what_was_retold_comes_after_what_was_told_as_well() -> None:
    told, retold = candidate("t1.0", "the kettle", at=1), candidate("t9.0", "the kettle", at=9, is_retold=True)
    assert [one.handle for one in rank(query_of("kettle"), [retold, told], 5)] == ["t1.0", "t9.0"]


def test_a_text_that_two_pieces_share_is_shown_once() -> None:
    pieces = [candidate("t1.1", "The kettle is here.", 2.0), candidate("t1.1", "The kettle is here.", 1.9)]
    assert len(rank(query_of("kettle"), pieces, 5)) == 1
