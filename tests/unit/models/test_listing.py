"""`atlas models list`: every provider and candidate, ready or with what is missing, and nobody is contacted."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atlas.kernel.config import Models, Price, Provider
from atlas.kernel.contract import Tiers
from atlas.kernel.errors import NotFound
from atlas.models.listing import Listing, check, listing
from atlas.models.router import Router
from atlas.models.scripted import Script, script_from
from atlas.models.weights import SMOLLM2
from atlas.testing.clock import FakeClock
from unit.models.conversation import Loads

LAB = Provider(kind="openai", base_url="http://127.0.0.1:9/v1")


def router(models: Models, environ: dict[str, str]) -> Router:
    def script(path: str) -> Script:
        if path == "gone.yaml":
            raise NotFound("there is no gone.yaml")
        return script_from({"replies": [{"text": "yes", "usage": {"in": 5, "out": 1}}]})

    return Router(models, clock=FakeClock(), load_blob=Loads(), load_script=script, environ=environ)


def listed(models: Models, environ: dict[str, str] | None = None) -> Listing:
    found = router(models, environ or {})
    result = listing(found, environ or {})
    asyncio.run(found.close())
    return result


def test_what_is_missing_is_said_with_its_fix() -> None:
    providers = {
        "lab": LAB,
        "keyed": Provider(kind="openai", base_url="http://127.0.0.1:9/v1", key="secret:lab_key"),
        "demo": Provider(kind="scripted", script="s.yaml"),
        "broken": Provider(kind="scripted", script="gone.yaml"),
        "mute": Provider(kind="scripted"),
        "lost": Provider(kind="anthropic", base_url="http://127.0.0.1:99999"),
    }
    rows = {row.name: row for row in listed(Models(providers=providers), {"ANTHROPIC_API_KEY": "x"}).providers}
    assert {name: (row.is_ready, row.source) for name, row in rows.items()} == {
        "lab": (True, "config"),
        "keyed": (False, "config"),
        "demo": (True, "config"),
        "broken": (False, "config"),
        "mute": (False, "config"),
        "lost": (False, "config"),
        "anthropic": (True, "environment"),
        "openai": (False, "environment"),
        "local": (False, "local"),
    }
    assert rows["demo"].remark == "scripted"
    assert rows["local"].remark == "local, tiny"
    assert "lab_key" in rows["keyed"].fix
    assert rows["broken"].why_not == "there is no gone.yaml"
    assert rows["lost"].why_not == "the address of lost is not valid"
    assert (rows["mute"].why_not, rows["mute"].fix) == (
        "mute names no script",
        "Write `script: FILE` for the provider.",
    )
    assert "OPENAI_API_KEY" in rows["openai"].fix
    assert rows["local"].fix.startswith("Run: ")
    assert all(bool(row.why_not) is not row.is_ready for row in rows.values())


@pytest.mark.parametrize(
    "written, shown",
    [
        ("http://ada:secret@127.0.0.1:9/v1", "http://***@127.0.0.1:9/v1"),
        ("https://se@cret@lab.example", "https://***@lab.example"),
        ("http://127.0.0.1:9/v1/@me?key=secret&v=1", "http://127.0.0.1:9/v1/@me?***"),
        ("http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1"),
    ],
)
def test_an_address_is_listed_without_the_keys_in_it(written: str, shown: str) -> None:
    rows = {
        row.name: row for row in listed(Models(providers={"lab": Provider(kind="openai", base_url=written)})).providers
    }
    assert rows["lab"].address == shown


def test_candidates_are_listed_by_tier_with_their_prices() -> None:
    tiers = Tiers(
        fast=("lab:small", "local:smollm2"), balanced=("openai:gpt-4o", "nobody:x"), powerful=("lab:strange",)
    )
    prices = {"lab:small": Price(0.1, 0.4)}
    found = listed(Models(providers={"lab": LAB}, tiers=tiers, prices=prices), {"OPENAI_API_KEY": "x"}).models
    rows = {(row.tier, row.name): row for row in found}
    small = rows["fast", "lab:small"]
    assert (small.input_usd, small.output_usd, small.is_price_guessed, small.is_ready) == (0.1, 0.4, False, True)
    known = rows["balanced", "openai:gpt-4o"]
    assert known.input_usd
    assert not known.is_price_guessed
    assert rows["powerful", "lab:strange"].is_price_guessed
    assert not rows["fast", "local:smollm2"].is_ready
    assert rows["balanced", "nobody:x"].why_not == "there is no provider nobody"


def test_a_model_behind_pydantic_ai_has_the_price_of_the_one_who_is_asked() -> None:
    tiers = Tiers(fast=("other:google:gemini-2.5-flash",), balanced=("other:google:unheard-of",))
    found = router(Models(providers={"other": Provider(kind="pydantic-ai")}, tiers=tiers), {})
    known, unknown = (row for row in listing(found, {}).models if row.tier)
    assert known.input_usd
    assert known.input_usd < 1
    assert not known.is_price_guessed
    assert unknown.is_price_guessed
    assert (found.context_window("fast") or 0) >= 1_000_000
    assert asyncio.run(found.window("fast")) == found.context_window("fast")
    assert asyncio.run(found.window("balanced")) == 0
    asyncio.run(found.close())


def test_a_key_or_a_server_keeps_tiers_from_becoming_local(tmp_path: Path) -> None:
    with open(tmp_path / SMOLLM2.file_name, "wb") as file:
        file.truncate(SMOLLM2.size)
    alone = {"ATLAS_MODELS": str(tmp_path)}
    if not any(row.name == "local" and row.is_ready for row in listed(Models(), alone).providers):
        pytest.skip("the extra `local` is not installed")
    assert [(row.tier, row.model) for row in listed(Models(), alone).models] == [
        ("fast", "local:smollm2"),
        ("balanced", "local:smollm2"),
        ("powerful", "local:smollm2"),
    ]
    served = listed(Models(), {**alone, "OPENAI_BASE_URL": "http://127.0.0.1:8000/v1"}).models
    assert [(row.tier, row.model, row.remark) for row in served] == [("", "local:smollm2", "local, tiny")]
    keyed = listed(Models(), {**alone, "OPENAI_API_KEY": "x"}).models
    assert {row.model.partition(":")[0] for row in keyed if row.tier} == {"openai"}


def test_checking_asks_each_ready_model_once_and_says_what_it_cost() -> None:
    tiers = Tiers(fast=("demo:one",), balanced=("demo:one", "lab:x"))
    models = Models(providers={"demo": Provider(kind="scripted", script="s"), "lab": LAB}, tiers=tiers)

    async def main() -> list[Any]:
        found = router(models, {})
        result = await check(found, listing(found, {}))
        await found.close()
        return result

    first, second = asyncio.run(main())
    assert (first.model, first.is_ok, first.text, first.tokens, first.cost_usd) == ("demo:one", True, "yes", 6, 0.0)
    assert (second.model, second.is_ok) == ("lab:x", False)
    assert "no connection" in second.error


def atlas(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    around = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", ""), **environ}
    command = [str(Path(sys.executable).with_name("atlas")), *words]
    return subprocess.run(command, env=around, capture_output=True, text=True, check=False, cwd=environ["HOME"])


def test_the_command_works_without_a_vault_and_in_one(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    done = atlas("models", "list", "--json", **home)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert [row["name"] for row in found["providers"]] == ["openai", "anthropic", "local"]
    assert found["models"] == []
    assert found["weights_folder"] == str(tmp_path / ".local/share/atlas/models")
    assert atlas("models", "list", "--vault", str(tmp_path / "none"), **home).returncode == 2
    assert atlas("new", "--vault", str(tmp_path / "v"), **home).returncode == 0
    text = atlas("models", "--vault", str(tmp_path / "v"), **home)
    assert "demo:script" in text.stdout
    assert "ready (scripted)" in text.stdout
    checked = atlas("models", "list", "--check", "--json", "--vault", str(tmp_path / "v"), **home)
    assert [row["is_ok"] for row in json.loads(checked.stdout)["checks"]] == [True]
    shown = atlas("models", "list", "--check", "--vault", str(tmp_path / "v"), **home).stdout.splitlines()
    assert [line.split()[:3] for line in shown[-2:]] == [["CHECK", "MODEL", "COST"], ["ok", "demo:script", "$0"]]


def test_the_command_pulls_only_what_it_knows(tmp_path: Path) -> None:
    done = atlas("models", "pull", "big", "--json", HOME=str(tmp_path))
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (2, "not_found")
