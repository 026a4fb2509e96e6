"""Loads an agent's class from `agent.py` in its folder, with an error that points into the user's file."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from atlas.engine.agent import AgentBase
from atlas.engine.failure import record_of
from atlas.kernel.errors import RunFailed


def load_class(folder: str) -> type[AgentBase]:
    """The agent class of `folder`; RunFailed with code `agent_import_failed` or `agent_class_missing`.

    The folder comes first on sys.path from here on, so that `agent.py` can import what lies beside it.
    """
    module = _import(folder)
    found = [
        item
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, AgentBase) and item is not AgentBase
    ]
    # A class that was only imported counts when agent.py defines none itself; a base of another candidate never does.
    own = [cls for cls in found if cls.__module__ == module.__name__] or found
    leaves = list(dict.fromkeys(cls for cls in own if not any(o is not cls and issubclass(o, cls) for o in own)))
    if len(leaves) != 1:
        raise _not_one(leaves)
    cls = leaves[0]
    if cls.execute is AgentBase.execute:
        raise RunFailed(
            f"class {cls.__name__} in agent.py has no execute()",
            code="agent_class_missing",
            hint="Write: async def execute(self, input, context): ...",
            where="agent.py",
        )
    return cls


def _import(folder: str) -> ModuleType:
    path = Path(folder) / "agent.py"
    spec = spec_from_file_location("agent", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise RunFailed(
            "there is no agent.py in the agent's folder",
            code="agent_import_failed",
            hint="Write agent.py with a class that extends AgentBase.",
            where="agent.py",
        )
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True  # the folder is a pinned snapshot: nothing may appear in it
    module = module_from_spec(spec)
    sys.modules["agent"] = module
    try:
        spec.loader.exec_module(module)
    except SystemExit as error:
        raise RunFailed(
            f"agent.py called sys.exit({error.code!r}) while it was imported",
            code="agent_import_failed",
            hint="Put what should only happen in a script under `if __name__ == '__main__':`.",
            where=record_of(error, folder, "").where,
        ) from error
    except Exception as error:
        record = record_of(error, folder, "agent_import_failed")
        hint = "The module is not installed where Atlas runs." if isinstance(error, ModuleNotFoundError) else ""
        raise RunFailed(
            f"agent.py cannot be imported: {record.message}",
            code="memory_limit" if record.code == "memory_limit" else "agent_import_failed",
            hint=record.hint or hint,
            where=record.where,
            detail=record.detail,
        ) from error
    return module


def _not_one(classes: list[type[AgentBase]]) -> RunFailed:
    if not classes:
        message = "agent.py defines no class that extends AgentBase"
        hint = "Write: from atlas import AgentBase; class MyAgent(AgentBase): ..."
    else:
        names = ", ".join(cls.__name__ for cls in classes)
        message = f"agent.py defines {len(classes)} agents: {names}"
        hint = "Keep one in agent.py and move the others to folders of their own."
    return RunFailed(message, code="agent_class_missing", hint=hint, where="agent.py")
