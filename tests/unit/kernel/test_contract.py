"""The contract and the configuration as types: defaults, patterns and the rules over several keys."""

from __future__ import annotations

import re

import msgspec
import pytest

from atlas.kernel.config import Config
from atlas.kernel.contract import (
    NAME_PATTERN,
    VERSION_PATTERN,
    AgentFile,
    Contract,
    suggest_name,
    suggest_version,
)

SMALLEST = {"name": "a", "version": "1.0.0", "description": "d"}


def contract(**more: object) -> Contract:
    return msgspec.convert({**SMALLEST, **more}, Contract)


def codes(**more: object) -> list[str]:
    return [finding.code for finding in contract(**more).findings()]


def test_name_version_and_description_are_enough() -> None:
    smallest = contract()
    assert (smallest.type, smallest.runtime) == ("task", None)
    assert smallest.input.schema == {}
    assert not smallest.requires.spawn_agents
    assert smallest.model.preference == "balanced"


@pytest.mark.parametrize("key", ["name", "version", "description"])
def test_each_of_the_three_is_needed(key: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=key):
        msgspec.convert({name: value for name, value in SMALLEST.items() if name != key}, Contract)


def test_an_unknown_key_is_an_error_at_every_level() -> None:
    for wrong in ({"nmae": 1}, {"model": {"x": 1}}, {"hardware": {"x": 1}}, {"mcp": {"servers": {"s": {"x": 1}}}}):
        with pytest.raises(msgspec.ValidationError, match="unknown field"):
            contract(**wrong)


def test_a_contract_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        contract().name = "b"  # type: ignore[misc]


def test_every_key_of_an_orchestrator_is_known() -> None:
    found = contract(
        type="orchestrator",
        orchestration={
            "strategies": ["chain_execution", "parallel_fanout", "conditional_routing", "recursive_decomposition"]
        },
        model_selection={
            "enabled": True,
            "tiers": {
                "fast": ["claude-haiku", "gpt-4o-mini"],
                "balanced": ["claude-sonnet"],
                "powerful": ["claude-opus", "gpt-4o"],
            },
            "routing_strategy": "task_complexity",
        },
    )
    assert list(found.findings()) == []
    assert found.model_selection is not None
    assert found.model_selection.tiers.powerful == ("claude-opus", "gpt-4o")


def test_hardware_takes_labels_and_devices() -> None:
    hardware = contract(hardware={"node_labels": {"tier": "high-compute"}, "device_access": ["/dev/video0"]}).hardware
    assert hardware.node_labels == {"tier": "high-compute"}
    assert hardware.device_access == ("/dev/video0",)


def test_keys_that_contradict_each_other_are_found() -> None:
    assert codes(orchestration={}) == ["not_an_orchestrator"]
    assert codes(type="conversational", model_selection={}) == ["not_an_orchestrator"]
    assert codes(budget={"on_cap": "fallback"}) == ["missing_fallback"]
    assert codes(budget={"on_cap": "fallback"}, model={"fallback": "fast"}) == []
    assert codes(hardware={"gpu_vram_gb": 16}) == ["gpu_not_required"]
    assert codes(hardware={"gpu": True, "gpu_vram_gb": 16}) == []
    assert codes(mcp={"servers": {"s": {}}}) == ["mcp_server_address"]
    assert codes(mcp={"servers": {"s": {"command": "x", "url": "http://h"}}}) == ["mcp_server_address"]
    assert codes(mcp={"servers": {"s": {"command": "x"}, "t": {"url": "http://h"}}}) == []
    assert codes(context={"files": ["a.md"]}, tools={"deny": ["read_*"]}) == ["files_unreadable"]
    assert codes(context={"files": ["a.md"]}, tools={"deny": ["wait"]}) == []


def test_files_of_the_context_lie_in_the_agents_folder() -> None:
    assert contract(context={"files": ["wiki/a b.md"]}).context.files == ("wiki/a b.md",)
    for path in ("", "/etc/passwd", "../x", "wiki/../../x", ".env", "wiki/.x", "a\\b", "wiki/"):
        with pytest.raises(msgspec.ValidationError):
            contract(context={"files": [path]})


def test_findings_of_the_file_start_at_agent() -> None:
    file = msgspec.convert({"agent": {**SMALLEST, "budget": {"on_cap": "fallback"}}}, AgentFile)
    (found,) = file.findings()
    assert found.path == ("agent", "budget", "on_cap")
    assert found.also == (("agent", "model", "fallback"),)


@pytest.mark.parametrize(
    "version",
    [
        "0.0.0",
        "1.2.3",
        "10.20.30",
        "1.0.0-alpha",
        "1.0.0-alpha.1",
        "1.0.0-0.3.7",
        "1.0.0+001",
        "1.0.0--",
        "1.0.0-a-b+c.d",
    ],
)
def test_semantic_versions_match(version: str) -> None:
    assert re.fullmatch(VERSION_PATTERN, version)


@pytest.mark.parametrize(
    "version",
    [
        "",
        "1",
        "1.2",
        "1.2.3.4",
        "01.2.3",
        "1.02.3",
        "v1.2.3",
        "1.2.3-",
        "1.2.3-01",
        "1.2.3+",
        "1.2.3-a..b",
        "1.2.x",
        "1.2.3\n",
        "١.2.3",
    ],
)
def test_other_versions_do_not(version: str) -> None:
    assert not re.fullmatch(VERSION_PATTERN, version)


def test_names_are_lower_case_and_short() -> None:
    for good in ("a", "0", "web-searcher", "a_b", "a" * 64):
        assert re.fullmatch(NAME_PATTERN, good)
    for bad in ("", "A", "-a", "_a", "a b", "a" * 65, "ä", "a\n", "../a", "a/b", "a."):
        assert not re.fullmatch(NAME_PATTERN, bad)


def test_suggestions_are_valid_or_nothing() -> None:
    assert suggest_name("My Agent!") == "my-agent"
    assert suggest_name("Café Über") == "cafe-uber"
    assert suggest_name("???") == ""
    assert suggest_version("1.10") == "1.10.0"
    assert suggest_version("v2") == "2.0.0"
    assert suggest_version("01.02.03") == "1.2.3"
    assert suggest_version("latest") == ""
    for text in ("Web Searcher 2000", "x" * 200, " A", "9"):
        assert re.fullmatch(NAME_PATTERN, suggest_name(text))


def test_a_price_is_that_of_a_provider_and_a_model() -> None:
    price = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2}
    for good in ("lab:small", "other:google:gemini", "lab:a/b:free"):
        assert good in msgspec.convert({"models": {"prices": {good: price}}}, Config).models.prices
    for bad in ("small", "lab:", ":small", "lab: small"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"models": {"prices": {bad: price}}}, Config)


def test_a_model_is_a_tier_or_a_provider_and_a_model() -> None:
    for good in ("fast", "balanced", "powerful", "lab:small", "anthropic:claude-x/y"):
        assert contract(model={"preference": good}).model.preference == good
    for bad in ("fsat", "claude", "lab:", ":x", "lab: x"):
        with pytest.raises(msgspec.ValidationError):
            contract(model={"preference": bad})


def test_the_configuration_has_all_its_defaults() -> None:
    config = Config()
    execution = config.execution
    assert (execution.max_spawn_depth, execution.max_concurrent_agents) == (5, 20)
    assert (execution.timeouts.chain, execution.timeouts.agent) == (300, 60)
    assert execution.resource_budget.max_tokens_per_chain is None
    assert (execution.circuit_breaker.failure_threshold, execution.circuit_breaker.recovery_timeout) == (3, 30)
    assert (execution.max_children_per_run, execution.max_runs_per_tree) == (100, 1000)
    assert execution.max_spawns_per_minute == 600
    assert (execution.worker_memory_mb, execution.worker_idle_s, execution.output_limit_mb) == (2048, 60, 8)
    assert (execution.cancel_grace_s, execution.lease_s) == (5, 15)
    assert (config.scheduling.strategy, config.scheduling.preemption_enabled) == ("bin_pack", False)
    assert config.scheduling.resource_reservation.gpu_headroom_pct == 10
    assert config.scheduling.resource_reservation.memory_headroom_pct == 15
    assert config.scheduling.node_failure.detection_timeout == 30
    assert config.scheduling.node_failure.reschedule_strategy == "retry"
    assert config.registry.policy.allow_unsigned is False
    assert config.ledger.url is None


def test_the_configuration_of_the_design_is_accepted() -> None:
    config = msgspec.convert(
        {
            "models": {
                "providers": {
                    "openai": {"kind": "openai"},
                    "lab": {
                        "kind": "openai",
                        "base_url": "http://127.0.0.1:8000/v1",
                        "key": "secret:lab",
                        "max_in_flight": 8,
                    },
                    "demo": {"kind": "scripted", "script": "scripts/demo.yaml"},
                },
                "tiers": {"fast": ["lab:small", "claude-haiku"]},
                "prices": {"lab:small": {"input_usd_per_mtok": 0.1, "output_usd_per_mtok": 0.4}},
            },
            "budget": {"usd_per_day": 20, "usd_per_month": 300, "warn_at": [0.5, 0.8]},
            "registry": {
                "policy": {
                    "allow_unsigned": False,
                    "minimum_review_status": "verified",
                    "allowed_publishers": ["my-org", "trusted-partner"],
                }
            },
            "ledger": {"url": "postgresql://localhost/atlas"},
        },
        Config,
    )
    assert config.models.providers["lab"].max_in_flight == 8
    assert config.models.tiers.fast == ("lab:small", "claude-haiku")
