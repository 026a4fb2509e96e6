"""The hooks that a configuration names: checked when a run is submitted, made when a turn begins."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

from atlas.kernel.contract import SHIPPED_HOOKS, Contract, HookUse
from atlas.kernel.errors import Invalid
from atlas.kernel.hook import Hook
from atlas.kernel.hook_shipped import DefinitionOfDone, OracleRun, TestOracle, TokenCeiling

GROUP: Final = "atlas.hooks"


class HookSet:
    """Every hook of a vault. `everywhere` are those of all prompt agents, `plugins` those of installed packages.

    `run` runs a command: the command, the folder, and the seconds it may take. `clean` takes secrets out of a text.
    """

    def __init__(
        self,
        everywhere: tuple[HookUse, ...],
        plugins: Callable[[], Mapping[str, Callable[[], Any]]],
        run: Callable[[str, str, float], Awaitable[OracleRun]],
        agent_folder: Callable[[str], str],
        clean: Callable[[str], str] = str,
    ) -> None:
        self.clean = clean
        self._everywhere = everywhere
        self._plugins = plugins
        self._run = run
        self._agent_folder = agent_folder

    def check(self, contract: Contract) -> None:
        """Invalid when a hook of this agent does not exist or cannot be made so; imports the packages it names."""
        if contract.runtime != "prompt":
            _require_nothing(contract)
            return
        for use, where in self._uses(contract):
            for found in use.findings():
                raise Invalid(found.message, hint=found.hint, where=where, code=found.code)
            if use.use is not None:
                self._made(use.use, use.options, where)

    def make(self, contract: Contract) -> tuple[Hook, ...]:
        """The hooks of one turn, those of the vault first."""
        folder = self._agent_folder(contract.name)
        return tuple(self._make(use, folder, where) for use, where in self._uses(contract))

    def _uses(self, contract: Contract) -> Iterator[tuple[HookUse, str]]:
        for index, use in enumerate(self._everywhere):
            yield use, f"atlas.config.yaml: hooks[{index}]"
        for index, use in enumerate(contract.hooks):
            yield use, f"agents/{contract.name}/agent.yaml: hooks[{index}]"

    def _make(self, use: HookUse, folder: str, where: str) -> Hook:
        if (oracle := use.test_oracle) is not None:

            async def run(command: str, timeout_s: float = oracle.timeout_s) -> OracleRun:
                return await self._run(command, folder, timeout_s)

            return TestOracle(oracle.command, run, oracle.rounds)
        if use.definition_of_done is not None:
            return DefinitionOfDone(use.definition_of_done.rounds)
        if use.token_ceiling is not None:
            return TokenCeiling(use.token_ceiling.limit)
        return self._made(use.use or "", use.options, where)

    def _made(self, name: str, options: dict[str, Any], where: str) -> Hook:
        found = self._class(name, options, where)
        try:
            hook = found(**options)
        except (Exception, SystemExit) as error:
            message = f"hook {name}: options: {type(error).__name__}: {error}"
            raise Invalid(message, hint=_taken_by(found), where=where, code="hook_options") from error
        hook.name = hook.name or name
        return hook

    def _class(self, name: str, options: dict[str, Any], where: str) -> type[Hook]:
        offers = self._plugins()
        if name in SHIPPED_HOOKS:
            hint = f"write it as a key: {name}: {{...}}"
            raise Invalid(f"{name} comes with Atlas and is not used by name", hint=hint, where=where, code="hook_name")
        if name not in offers:
            raise Invalid(
                f"no installed package has a hook {name}",
                hint=_guess(name, (*SHIPPED_HOOKS, *offers)),
                where=where,
                code="hook_unknown",
            )
        found = _loaded(offers[name], name, where)
        try:
            inspect.signature(found).bind(**options)
        except TypeError as error:
            message = f"hook {name}: options: {error}"
            raise Invalid(message, hint=_taken_by(found), where=where, code="hook_options") from None
        return found


async def perform(work: Callable[[], Awaitable[Any]]) -> tuple[Any, BaseException | None]:
    """What a hook decided or raised, in a task of its own: whatever it cancels there, it does not cancel the turn.

    Raises CancelledError when the turn is cancelled, whatever the hook makes of that.
    """
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(_kept(work))
    return (None, asyncio.CancelledError("it cancelled itself")) if asked.cancelled() else asked.result()


async def _kept(work: Callable[[], Awaitable[Any]]) -> tuple[Any, BaseException | None]:
    try:
        return await work(), None
    except BaseException as error:  # noqa: BLE001 - whatever a hook raises is its failure
        return None, error


def _taken_by(hook: type[Hook]) -> str:
    return f"see what {hook.__module__}.{hook.__qualname__} takes"


def _loaded(load: Callable[[], Any], name: str, where: str) -> type[Hook]:
    try:
        found = load()
    except (Exception, SystemExit) as error:
        message = f"hook {name} cannot be loaded: {type(error).__name__}: {error}"
        raise Invalid(message, hint="Repair or reinstall its package.", where=where, code="hook_broken") from error
    if not (isinstance(found, type) and issubclass(found, Hook)):
        hint = "Its entry point must name a class that derives from atlas.kernel.hook.Hook."
        raise Invalid(f"hook {name} is no hook: {found!r:.200}", hint=hint, where=where, code="hook_broken")
    return found


def _require_nothing(contract: Contract) -> None:
    for key in ("hooks", "soft_timeout_s"):
        if getattr(contract, key):
            raise Invalid(
                f"{key} is for prompt agents, and {contract.name} is a {contract.runtime} agent",
                hint=f"Remove {key}; timeout_s holds for every agent.",
                where=f"agents/{contract.name}/agent.yaml",
                code="only_prompt_agents",
            )


def _guess(name: str, known: tuple[str, ...]) -> str:
    import difflib

    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"the hooks are {', '.join(known)}"
