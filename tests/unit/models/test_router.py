"""The router: which model is asked when, what is waited for, and that every try is accounted for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec
import pytest

from atlas.kernel.config import Models, Price, Provider
from atlas.kernel.contract import Tiers
from atlas.kernel.errors import Invalid
from atlas.kernel.model import Attempt, Delta, ModelError, ModelErrorKind, OnDelta, Reply, Request, Tab, Text, Usage
from atlas.models.price import Cost
from atlas.models.router import Retry, Router
from atlas.models.scripted import script_from
from atlas.testing.clock import FakeClock
from unit.models.conversation import Loads, asked, user

T = TypeVar("T")
REQUEST = asked(user(Text("hello")))
QUICK = Retry(first_wait_s=0.001, longest_wait_s=0.002, breaker_recovery_s=0.05)
USAGE = Usage(1000, 100)
PRICES = {f"{name}:m": Price(1.0, 10.0) for name in ("a", "b", "c")}


class Playing:
    """A model that plays what it is told: an error, or anything else as its text."""

    def __init__(self, *acts: ModelError | str) -> None:
        self.acts = list(acts)
        self.requests: list[Request] = []
        self.is_closed = False
        self.usage = USAGE

    async def ask(self, request: Request, on_delta: OnDelta) -> Reply:
        self.requests.append(request)
        act = self.acts.pop(0) if len(self.acts) > 1 else self.acts[0]
        on_delta(Delta("text", "some", request.attempt))
        if isinstance(act, ModelError):
            raise act
        if act == "hang":
            await asyncio.sleep(60)
        return Reply((Text(act),), "end", self.usage, request.model)

    async def close(self) -> None:
        self.is_closed = True


def failure(kind: ModelErrorKind, **more: Any) -> ModelError:
    return ModelError(kind, f"it was {kind}", **more)


def build(retry: Retry = QUICK, max_in_flight: int | None = None, **models: Playing) -> Router:
    """A router whose tier `fast` is these models in order."""
    provider = Provider(kind="local", max_in_flight=max_in_flight)
    config = Models(
        providers=dict.fromkeys(models, provider),
        tiers=Tiers(fast=tuple(f"{name}:m" for name in models)),
        prices=PRICES,
    )
    return Router(
        config,
        clock=FakeClock(),
        load_blob=Loads(),
        load_script=lambda path: pytest.fail("no script"),
        adapters={"local": lambda endpoint: models[endpoint.name]},
        retry=retry,
    )


def ask(router: Router, choice: str = "fast", **more: Any) -> Any:
    return asyncio.run(router.ask(choice, REQUEST, lambda delta: None, **more))


def test_the_first_candidate_answers_and_says_so() -> None:
    a, b = Playing("yes"), Playing("no")
    found = ask(build(a=a, b=b))
    assert (found.model, found.reply.parts) == ("a:m", (Text("yes"),))
    (attempt,) = found.attempts
    assert msgspec.structs.replace(attempt, latency_us=0) == Attempt("a:m", USAGE, 2000)
    assert found.cost_micro_usd == 2000
    assert a.requests[0].model == "m"
    assert b.requests == []


@pytest.mark.parametrize("kind", ["server", "rate_limit", "timeout", "connection", "empty"])
def test_what_passes_is_tried_again_and_then_left_to_the_next(kind: ModelErrorKind) -> None:
    a, b, c = Playing(failure(kind, usage=Usage(500))), Playing(failure(kind), "yes"), Playing("no")
    found = ask(build(a=a, b=b, c=c))
    assert [attempt.model for attempt in found.attempts] == ["a:m"] * 3 + ["b:m"] * 2
    assert [attempt.error.code if attempt.error else None for attempt in found.attempts] == [f"model_{kind}"] * 4 + [
        None
    ]
    assert [attempt.cost_micro_usd for attempt in found.attempts] == [500, 500, 500, 0, 2000]
    assert found.cost_micro_usd == 3500
    assert [request.attempt for request in a.requests + b.requests] == [1, 2, 3, 4, 5]
    assert c.requests == []


def test_nobody_waits_to_find_a_provider_left_alone_when_there_is_another() -> None:
    a, b = Playing(failure("server", retry_after_s=50.0)), Playing("yes")
    router = build(Retry(breaker_threshold=1, breaker_recovery_s=600.0), a=a, b=b)

    async def main() -> Any:
        async with asyncio.timeout(20):
            return await router.ask("fast", REQUEST, lambda delta: None)

    assert asyncio.run(main()).model == "b:m"
    assert len(a.requests) == 1


def test_a_provider_that_does_not_serve_us_is_left_at_once() -> None:
    a, b = Playing(failure("auth")), Playing("yes")
    assert ask(build(a=a, b=b)).model == "b:m"
    assert len(a.requests) == 1


@pytest.mark.parametrize("kind", ["overflow", "refused", "invalid"])
def test_a_request_that_is_at_fault_itself_is_asked_once(kind: ModelErrorKind) -> None:
    a, b = Playing(failure(kind)), Playing("no")
    with pytest.raises(ModelError, match=f"it was {kind}") as caught:
        ask(build(a=a, b=b))
    assert caught.value.kind == kind
    assert len(caught.value.attempts) == len(a.requests) == 1
    assert b.requests == []


def test_when_nobody_answers_the_error_tells_all() -> None:
    with pytest.raises(ModelError) as caught:
        ask(build(a=Playing(failure("server", retry_after_s=0.01)), b=Playing(failure("auth"))))
    error = caught.value
    assert error.kind == "server"
    assert "a:m: it was server" in error.message
    assert "b:m: it was auth" in error.message
    assert error.retry_after_s == 0.01
    assert [attempt.model for attempt in error.attempts] == ["a:m", "a:m", "a:m", "b:m"]


def test_deltas_carry_the_number_of_their_attempt() -> None:
    deltas: list[Delta] = []
    router = build(a=Playing(failure("server")), b=Playing("yes"))
    asyncio.run(router.ask("fast", REQUEST, deltas.append))
    assert [delta.attempt for delta in deltas] == [1, 2, 3, 4]


def waits(*errors: ModelError, retry: Retry) -> float:
    began = time.monotonic()
    ask(build(retry, a=Playing(*errors, "yes")))
    return time.monotonic() - began


def test_retry_after_is_waited_for() -> None:
    retry = Retry(first_wait_s=0.0, longest_wait_s=0.0)
    assert 0.2 <= waits(failure("rate_limit", retry_after_s=0.2), retry=retry) < 1.0


def test_retry_after_beyond_the_limit_is_not_waited_for() -> None:
    a, b = Playing(failure("rate_limit", retry_after_s=61.0)), Playing("yes")
    began = time.monotonic()
    assert ask(build(Retry(), a=a, b=b)).model == "b:m"
    assert time.monotonic() - began < 1.0
    assert len(a.requests) == 1
    with pytest.raises(ModelError) as caught:
        ask(build(Retry(), a=Playing(failure("rate_limit", retry_after_s=61.0))))
    assert caught.value.retry_after_s == 61.0


def test_waits_grow_and_differ_by_chance() -> None:
    retry = Retry(tries=3, first_wait_s=0.1, longest_wait_s=10.0)
    total = waits(failure("server"), failure("server"), retry=retry)
    assert 0.15 <= total < 0.3 + 0.5  # half to all of 0.1 s, then of 0.2 s
    chances = {FakeClock(seed=seed).entropy(4) for seed in range(5)}
    assert len(chances) == 5


def test_a_provider_that_is_down_is_passed_over_without_being_asked_and_tried_again_later() -> None:
    a, b = Playing(*[failure("server")] * 6, "back"), Playing("yes")
    router = build(a=a, b=b)

    async def run() -> None:
        for _ in range(5):
            assert (await router.ask("fast", REQUEST, lambda delta: None)).model == "b:m"
        assert len(a.requests) == 5  # the breaker opened at the fifth failure
        await asyncio.sleep(0.06)
        assert (await router.ask("fast", REQUEST, lambda delta: None)).model == "b:m"
        assert len(a.requests) == 6  # one probe, and it failed
        await asyncio.sleep(0.06)
        assert (await router.ask("fast", REQUEST, lambda delta: None)).model == "a:m"
        assert (await router.ask("fast", REQUEST, lambda delta: None)).model == "a:m"

    asyncio.run(run())


def test_the_only_candidate_is_waited_for_while_it_is_left_alone() -> None:
    a = Playing(*[failure("server")] * 5, "back")
    router = build(a=a)

    async def run() -> None:
        with pytest.raises(ModelError):
            await router.ask("fast", REQUEST, lambda delta: None)
        found = await router.ask("fast", REQUEST, lambda delta: None)
        assert len(found.attempts) == 3

    asyncio.run(run())


def test_lane_of_a_provider_is_never_exceeded() -> None:
    class Counting(Playing):
        inside = most = 0

        async def ask(self, request: Request, on_delta: OnDelta) -> Reply:
            self.inside += 1
            self.most = max(self.most, self.inside)
            await asyncio.sleep(0.001)
            self.inside -= 1
            return await super().ask(request, on_delta)

    a = Counting("yes")
    router = build(max_in_flight=3, a=a)

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(30):
                group.create_task(router.ask("a:m", REQUEST, lambda delta: None))

    asyncio.run(run())
    assert (a.most, len(a.requests)) == (3, 30)


def in_loop(act: Callable[[Router], Coroutine[Any, Any, T]], **models: Playing) -> T:
    return asyncio.run(act(build(**models)))


def test_a_cancelled_call_is_accounted_for_and_frees_its_place() -> None:
    attempts: list[Attempt] = []

    async def run(router: Router) -> None:
        for _ in range(3):
            tab = Tab()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await router.ask("fast", REQUEST, lambda delta: None, tab)
            attempts.extend(tab.attempts)

    in_loop(run, a=Playing("hang"))
    assert [attempt.error.code for attempt in attempts if attempt.error] == ["cancelled"] * 3
    # The request was sent, frame and all, and nobody knows how much of the answer the provider had made: all it might.
    used = Usage(-(-len(msgspec.json.encode(REQUEST)) // 3), REQUEST.max_output_tokens, is_estimated=True)
    cost = used.tokens_in + 10 * used.tokens_out
    assert {(attempt.usage, attempt.cost_micro_usd) for attempt in attempts} == {(used, cost)}
    assert all(10_000 < attempt.latency_us < 1_000_000 for attempt in attempts)


def test_every_attempt_is_on_the_tab() -> None:
    tab = Tab()
    found = ask(build(a=Playing(failure("server"), "yes")), tab=tab)
    assert tuple(tab.attempts) == found.attempts


def test_a_try_that_was_billed_is_not_repeated_beyond_what_was_reserved() -> None:
    cut = ModelError("connection", "cut", usage=Usage(2, 1, is_estimated=True))
    a, tab = Playing(cut, "yes"), Tab(50_000)
    with pytest.raises(ModelError) as caught:
        ask(build(a=a), tab=tab)
    assert (caught.value.kind, len(a.requests)) == ("budget", 1)
    assert caught.value.message.startswith("cut; ")
    assert caught.value.attempts == tuple(tab.attempts)
    assert tab.is_estimated


def test_a_try_that_cost_nothing_is_repeated_within_what_was_reserved() -> None:
    assert ask(build(a=Playing(failure("server"), "yes")), tab=Tab(50_000)).reply.parts == (Text("yes"),)


def test_a_lost_try_is_counted_at_no_less_than_what_was_reserved_for_reading() -> None:
    cut = ModelError("connection", "cut", usage=Usage(2, 1, is_estimated=True))
    tab = Tab(50_000, 7_000)
    with pytest.raises(ModelError):
        ask(build(a=Playing(cut, "yes")), tab=tab)
    (attempt,) = tab.attempts
    assert attempt.usage == Usage(7_000, REQUEST.max_output_tokens, is_estimated=True)
    assert attempt.cost_micro_usd == 7_000 + 10 * REQUEST.max_output_tokens


def test_what_a_provider_says_beyond_the_reservation_is_counted_even_when_its_answer_is_cut() -> None:
    cut = ModelError("connection", "cut", usage=Usage(9_000, 5_000, is_estimated=True))
    tab = Tab(50_000, 7_000)
    with pytest.raises(ModelError):
        ask(build(a=Playing(cut, "yes")), tab=tab)
    assert tab.attempts[0].usage == Usage(9_000, 5_000, is_estimated=True)


@pytest.mark.parametrize("said", [Usage(10**17, 10**30), Usage(5, 10**10), Usage(-1, 5), Usage(5, 5, 10**12)])
def test_counts_that_cannot_be_true_are_taken_for_none(said: Usage) -> None:
    most = Usage(7_000, REQUEST.max_output_tokens, is_estimated=True)
    a = Playing("yes")
    a.usage = said
    answered, failed = Tab(50_000, 7_000), Tab(50_000, 7_000)
    assert ask(build(a=a), tab=answered).reply.usage == most
    with pytest.raises(ModelError):
        ask(build(a=Playing(failure("invalid", usage=said))), tab=failed)
    for tab in (answered, failed):
        assert [attempt.usage for attempt in tab.attempts] == [most]
        assert tab.cost_micro_usd == 7_000 + 10 * REQUEST.max_output_tokens


def test_after_a_lost_question_the_next_candidate_is_asked_first() -> None:
    models = {"a": Playing("from a"), "b": Playing("from b")}
    answers = [ask(build(**models), tab=Tab(first=first)).model for first in range(3)]
    assert answers == ["a:m", "b:m", "a:m"]
    b = Playing(failure("auth"))
    assert ask(build(a=Playing("from a"), b=b), tab=Tab(first=1)).model == "a:m"
    assert len(b.requests) == 1


def test_an_error_of_the_listener_is_not_taken_for_one_of_the_provider() -> None:
    def complain(delta: Delta) -> None:
        raise OSError("the terminal is gone")

    a = Playing("yes")
    with pytest.raises(OSError, match="the terminal"):
        asyncio.run(build(a=a).ask("fast", REQUEST, complain))
    assert len(a.requests) == 1


def test_worst_case_is_that_of_the_dearest_candidate() -> None:
    config = Models(
        providers={"a": Provider(kind="local"), "b": Provider(kind="local")},
        tiers=Tiers(fast=("a:m", "b:m")),
        prices={"a:m": Price(1.0, 1.0), "b:m": Price(2.0, 4.0, cache_write_usd_per_mtok=3.0)},
    )
    router = Router(config, clock=FakeClock(), load_blob=Loads(), load_script=lambda path: pytest.fail("none"))
    assert router.worst_case("fast", 1000, 100) == Cost(3400)
    assert router.worst_case("a:m", 1000, 100) == Cost(1100)
    assert router.cost("b:m", Usage(1000, 100)) == Cost(2400)


def scripted(data: dict[str, Any], retry: Retry = QUICK) -> Router:
    config = Models(providers={"demo": Provider(kind="scripted", script="demo.yaml")}, tiers=Tiers(fast=("demo:one",)))
    scripts = {"demo.yaml": data}
    return Router(
        config,
        clock=FakeClock(),
        load_blob=Loads(),
        load_script=lambda path: script_from(scripts[path], path),
        retry=retry,
    )


def test_a_scripted_provider_answers_for_free_and_without_the_catalogue() -> None:
    errors = [{"error": {"kind": "rate_limit", "retry_after_s": 0.01}}] * 2
    router = scripted({"replies": [*errors, {"text": "done", "usage": {"in": 9, "out": 3}}]})
    found = ask(router)
    assert found.reply == Reply((Text("done"),), "end", Usage(9, 3), "one", is_scripted=True)
    assert [attempt.error is None for attempt in found.attempts] == [False, False, True]
    assert found.cost_micro_usd == 0
    assert not router._catalogue.is_loaded


def test_a_broken_script_is_the_owners_error() -> None:
    with pytest.raises(Invalid, match="txt"):
        ask(scripted({"replies": [{"txt": "hi"}]}))


def test_unknown_prices_are_marked_on_the_attempt() -> None:
    config = Models(providers={"a": Provider(kind="openai", base_url="http://127.0.0.1:1/v1")})
    router = Router(
        config,
        clock=FakeClock(),
        load_blob=Loads(),
        load_script=lambda path: pytest.fail("none"),
        adapters={"openai": lambda endpoint: Playing("yes")},
    )
    (attempt,) = ask(router, "a:unheard-of").attempts
    assert attempt.is_price_guessed
    assert attempt.cost_micro_usd == 210_000  # $150 and $600 a million


def test_a_kind_that_is_not_installed_is_passed_over() -> None:
    config = Models(
        providers={"a": Provider(kind="local"), "demo": Provider(kind="scripted", script="s")},
        tiers=Tiers(fast=("a:m", "demo:one")),
    )
    router = Router(
        config, clock=FakeClock(), load_blob=Loads(), load_script=lambda path: script_from({"replies": [{"text": "x"}]})
    )
    assert ask(router).model == "demo:one"
    with pytest.raises(ModelError, match=r"not installed|not in"):
        ask(router, "a:m")


def test_closing_closes_the_models_that_were_used() -> None:
    a, b = Playing("yes"), Playing("no")

    async def run(router: Router) -> None:
        await router.ask("fast", REQUEST, lambda delta: None)
        await router.close()

    in_loop(run, a=a, b=b)
    assert (a.is_closed, b.is_closed) == (True, False)


def test_importing_the_room_loads_no_client_and_no_catalogue() -> None:
    script = (
        "import pkgutil, sys, importlib, atlas.models, atlas.testing.provider\n"
        "for module in pkgutil.iter_modules(atlas.models.__path__, 'atlas.models.'):\n"
        "    importlib.import_module(module.name)\n"
        "heavy = {'aiohttp', 'yarl', 'genai_prices', 'pydantic', 'httpx2'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_context_window_is_known_as_soon_as_the_catalogue_is() -> None:
    provider = Provider(kind="openai", base_url="https://api.openai.com/v1", key="secret:KEY")
    models = Models(
        providers={"openai": provider},
        tiers=Tiers(fast=("openai:gpt-4o",)),
        prices={"openai:gpt-4o": Price(1.0, 2.0)},
    )

    async def work() -> None:
        router = Router(
            models,
            clock=FakeClock(),
            load_blob=Loads(),
            load_script=lambda path: pytest.fail("no script"),
            keys={"openai": "key"},
        )
        assert await router.window("fast") == 0  # its price is configured, so nothing needed the catalogue
        await router.load()
        assert await router.window("fast") == router.context_window("fast") == 128_000
        await router.close()

    asyncio.run(work())
