"""The tool host's contract: what tools declare, and what becomes of calls that come back."""

from __future__ import annotations

import msgspec

from atlas.kernel.batch import EVERYTHING
from atlas.kernel.errors import NotFound
from atlas.testing.tool_host_rig import Scene, case, refused, together
from atlas.testing.tool_host_tools import MEETING


@case
async def definitions_say_what_each_tool_declares_by_name(scene: Scene) -> None:
    found = await scene.host.definitions(scene.rig.folder)
    names = [one.name for one in found]
    assert names == sorted(names)
    by_name = {one.name: one for one in found}
    write, double = by_name["write"], by_name["double"]
    assert (write.effect, write.timeout_s, write.has_probe) == ("external_side_effect", 7.0, True)
    assert not write.is_repeatable
    assert (double.effect, double.resources, double.is_repeatable) == ("read_only", ("slip:{n}",), True)
    assert by_name["touch"].computes_resources
    assert by_name["die_first"].idempotent


@case
async def a_model_is_offered_the_arguments_and_never_the_key(scene: Scene) -> None:
    by_name = {one.name: one for one in await scene.host.definitions(scene.rig.folder)}
    schema = msgspec.json.decode(by_name["write"].spec.schema)
    assert (list(schema["properties"]), schema["required"]) == (["path"], ["path"])
    assert by_name["write"].spec.description == "Writes the key into the file."


@case
async def a_folder_without_tools_has_none(scene: Scene) -> None:
    assert await scene.host.definitions(scene.rig.empty) == ()


@case
async def a_tool_that_is_not_there_is_not_found(scene: Scene) -> None:
    with refused(NotFound):
        await scene.call("missing")
    with refused(NotFound):
        await scene.probe("missing")
    with refused(NotFound):
        await scene.resources("missing")


@case
async def resources_are_computed_where_a_tool_can(scene: Scene) -> None:
    assert await scene.resources("touch", path="a.txt") == ("file:a.txt",)


@case
async def a_tool_that_cannot_say_what_it_touches_may_touch_everything(scene: Scene) -> None:
    assert await scene.resources("touch", path="") == (EVERYTHING,)
    assert await scene.resources("nothing") == (EVERYTHING,)


@case
async def a_call_comes_back_as_text(scene: Scene) -> None:
    words = await scene.call("double", n=21)
    assert (words.text, words.is_error, words.in_doubt) == ("42", False, False)
    found = await scene.call("data", n=1, tags=["ä"])
    assert msgspec.json.decode(found.text) == {"n": 1, "tags": ["ä"]}
    assert (await scene.call("nothing")).text


@case
async def text_of_a_kind_of_its_own_is_text(scene: Scene) -> None:
    said = (await scene.call("markup", text="a")).text
    found = (await scene.probe("markup", text="b")).text
    touched = await scene.resources("markup", text="c")
    assert [(type(one), one) for one in (said, found, *touched)] == [(str, "a"), (str, "b"), (str, "slip:c")]


@case
async def a_call_gets_the_key_of_its_effect(scene: Scene) -> None:
    assert (await scene.call("write", "run_7/tool:2.1:write", path=scene.path)).text == "written"
    assert scene.written == "run_7/tool:2.1:write\n"


@case
async def what_a_tool_does_wrong_is_text_for_the_model(scene: Scene) -> None:
    failed = await scene.call("fail", why="the moon is full")
    assert failed.is_error
    assert "the moon is full" in failed.text
    assert (await scene.call("leave")).is_error
    assert (await scene.call("opaque")).is_error
    assert (await scene.call("double", n=2)).text == "4", "and the next call is none the worse for it"


@case
async def whatever_a_tool_raises_is_the_outcome_of_that_call_alone(scene: Scene) -> None:
    kinds = ["Abort", "KeyboardInterrupt", "CancelledError", "StopIteration", "GeneratorExit"]
    calls = [scene.call("escape", kind=kind) for kind in kinds]
    # A coroutine that raises StopIteration raises what Python makes of it.
    later = [kind for kind in kinds if kind != "StopIteration"]
    calls += [scene.call("escape_later", kind=kind) for kind in later]
    for kind, found in zip((*kinds, *later), await together(calls), strict=True):
        assert (found.is_error, found.in_doubt) == (True, False), kind
        assert found.text.startswith(f"{kind}: the way out"), found.text
    # Alone too, where a host may perform it in another way.
    for kind in kinds:
        assert (await scene.call("escape", kind=kind)).text.startswith(f"{kind}: the way out")


@case
async def arguments_that_do_not_fit_are_text_for_the_model(scene: Scene) -> None:
    unfit = await scene.call("double", n="many")
    assert unfit.is_error
    assert "n" in unfit.text
    assert not unfit.in_doubt


@case
async def a_probe_says_whether_a_call_happened(scene: Scene) -> None:
    assert (await scene.probe("write", "k1", path=scene.path)).found == "not_done"
    await scene.call("write", "k1", path=scene.path)
    found = await scene.probe("write", "k1", path=scene.path)
    assert (found.found, found.text) == ("done", "written")
    assert (await scene.probe("write", "k2", path=scene.path)).found == "not_done"


@case
async def a_probe_that_fails_or_is_missing_cannot_tell(scene: Scene) -> None:
    failed = await scene.probe("forget", path="a")
    assert failed.found == "unknown"
    assert "nobody answers" in failed.message
    assert (await scene.probe("double", n=1)).found == "unknown"


@case
async def repeatable_calls_run_side_by_side(scene: Scene) -> None:
    met = await together([scene.call("meet") for _ in range(MEETING)])
    assert [one.text for one in met] == ["met"] * MEETING


@case
async def each_caller_gets_its_own_result(scene: Scene) -> None:
    found = await together([scene.call("double", n=n) for n in range(40)])
    assert [one.text for one in found] == [str(2 * n) for n in range(40)]
