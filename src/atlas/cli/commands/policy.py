"""`atlas policy`: check the files, explain a decision, try the examples, and search for a way around."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from atlas.cli.command import Group
from atlas.cli.terminal import Terminal, pass_terminal

if TYPE_CHECKING:
    from atlas.control.explain import Explained
    from atlas.kernel.errors import Problem


class Checked(msgspec.Struct, frozen=True):
    """What the policy files of a vault are worth."""

    ok: bool
    files: tuple[str, ...]
    rules: int
    examples: int
    floor_examples: int
    version: str
    problems: tuple[Problem, ...]


@click.group(
    "policy",
    cls=Group,
    examples="""
    atlas policy check
    atlas policy explain @last 3
    atlas policy explain --agent mailer --tool send_mail
    atlas policy test
    atlas policy fuzz --n 100000
    """,
)
def policy() -> None:
    """Check the rules, and say which of them decided what.

    Rules are in policy.yaml of the vault, under 'policy' in atlas.config.yaml, in policy.yaml of each project, and in the
    'tools' of each agent. Deny wins over ask, ask over allow, whichever layer says it.
    """


@policy.command("check", examples="atlas policy check --json")
@pass_terminal
def check(terminal: Terminal) -> int:
    """Read every policy and mandate file, and list all problems.

    While a policy file has a problem nothing runs: rules that cannot be read never count as no rules. Exit code 2 then.
    """
    checked = _checked(terminal)
    if terminal.is_json:
        terminal.emit(checked)
    else:
        _print_checked(terminal, checked)
    return _code(checked.ok)


@policy.command("test", examples="atlas policy test")
@pass_terminal
def test(terminal: Terminal) -> int:
    """Try the examples of every rule, the floor's included.

    A rule's 'examples' say what it must match and what it must not. They are tried whenever the file is read, too.
    """
    checked = _checked(terminal)
    wrong = [problem for problem in checked.problems if problem.code == "wrong_example"]
    if terminal.is_json:
        terminal.emit(checked)
    elif checked.ok:
        terminal.say(
            f"{checked.examples} examples of {checked.rules} rules and {checked.floor_examples} of the floor hold"
        )
    else:
        _print_checked(terminal, checked)
        terminal.note(f"{len(wrong)} examples are wrong" if wrong else "fix these first; examples were not tried")
    return _code(checked.ok)


@policy.command(
    "explain",
    examples="""
    atlas policy explain @last send:1
    atlas policy explain --agent mailer --tool shell --args '{"command": "ls"}'
    atlas policy explain --agent mailer --tool pay --effect high_risk
    """,
)
@click.argument("run", required=False)
@click.argument("step", required=False)
@click.option("--agent", default="", help="Instead of a run: the agent that would act.")
@click.option("--tool", default="", help="The tool it would use.")
@click.option("--args", "arguments", default="{}", metavar="JSON|@FILE|-", help="The arguments it would give.")
@click.option(
    "--effect",
    type=click.Choice(["read_only", "reversible_write", "external_side_effect", "high_risk"]),
    default="reversible_write",
    show_default=True,
    help="The class of the effect.",
)
@click.option("--principal", default="owner", show_default=True, help="On whose behalf.")
@click.option("--project", default="", help="The project it belongs to.")
@pass_terminal
def explain(
    terminal: Terminal,
    run: str | None,
    step: str | None,
    agent: str,
    tool: str,
    arguments: str,
    effect: str,
    principal: str,
    project: str,
) -> int:
    """Show every layer and rule that spoke about an effect, and which decided.

    With RUN and STEP: what was recorded; STEP is an effect as 'atlas show' lists it, its number, or a tool's name. With
    --agent and --tool: what the rules would say now.
    """
    if run is not None and step is not None:
        explained = terminal.run(_recorded(terminal, run, step))
    elif agent and tool:
        explained = _imagined(terminal, agent, tool, arguments, effect, principal, project)
    else:
        raise click.UsageError("Give RUN and STEP, or --agent and --tool.")
    if terminal.is_json:
        terminal.emit(explained)
    else:
        _print_explained(terminal, explained)
    return 0


@policy.command("fuzz", examples="atlas policy fuzz --n 100000 --seed 7")
@click.option("--n", "trees", type=click.IntRange(1, 10**8), default=100_000, show_default=True, help="Trees to try.")
@click.option("--seed", type=int, metavar="N", help="Draw what an earlier one drew.")
@pass_terminal
def fuzz(terminal: Terminal, trees: int, seed: int | None) -> int:
    """Search for a way around the rules in random trees of layers and children.

    No child may hold a right its parent lacks, merging must not depend on order, no layer but an owner's may widen, and
    nothing may pass a deny. Touches no vault. Exit code 5 when a law was broken.
    """
    from atlas.cli.failure import DONE, FAILED
    from atlas.cli.fields import report_lines
    from atlas.testing.policy_fuzz import run

    report = run(trees, seed, terminal.note)
    if terminal.is_json:
        terminal.emit(report)
    else:
        for line in report_lines(report):
            terminal.say(line)
    return DONE if report.ok else FAILED


def _checked(terminal: Terminal) -> Checked:
    from atlas.kernel.errors import Problem
    from atlas.kernel.floor import HAZARDS, check_examples

    files = terminal.program.policy_files(terminal.vault)
    problems = [*files.problems(), *(Problem("wrong_example", f"the floor: {text}") for text in check_examples())]
    names = tuple(str(path.relative_to(files.root)) for path in files.files())
    floor = sum(len(hazard.found) + len(hazard.missed) for hazard in HAZARDS)
    if problems:
        return Checked(False, names, 0, 0, floor, "", tuple(problems))
    found = files.policy()
    rules = tuple(rule for layer in found.layers for rule in layer.rules)
    examples = sum(len(rule.examples.match) + len(rule.examples.not_match) for rule in rules)
    return Checked(True, names, len(rules), examples, floor, found.version, ())


def _code(is_ok: bool) -> int:
    from atlas.cli.failure import DONE, INVALID

    return DONE if is_ok else INVALID


def _print_checked(terminal: Terminal, checked: Checked) -> None:
    from atlas.cli.text import clean, count

    for problem in checked.problems:
        terminal.say(clean(f"{problem.where}: {problem.message}".removeprefix(": ")))
        if problem.hint:
            terminal.say(f"    {clean(problem.hint)}")
    if checked.ok:
        files = ", ".join(checked.files) or "no files: the defaults and the floor"
        terminal.say(f"{files}: {count(checked.rules, 'rule')}, {count(checked.examples, 'example')}")
        terminal.say(f"version {checked.version[:16]}")
    else:
        terminal.note(f"{count(len(checked.problems), 'problem')}; nothing runs until they are fixed")


async def _recorded(terminal: Terminal, word: str, step: str) -> Explained:
    from atlas.control.explain import explain_recorded
    from atlas.control.history import bodies

    async with terminal.open() as host:
        row = await host.find_run(word)
        events = await host.ledger.events(row.run_id)
    return explain_recorded((body for _, body in bodies(events)), step)


def _imagined(
    terminal: Terminal, agent: str, tool: str, arguments: str, effect: str, principal: str, project: str
) -> Explained:
    from atlas.cli.value import read_value
    from atlas.control.explain import explain_ruling
    from atlas.kernel.policy import CompiledPolicy, Proposal, rule_on
    from atlas.kernel.rule import EffectClass, Layer

    files = terminal.program.policy_files(terminal.vault)
    effect_class = msgspec.convert(effect, EffectClass)
    value = read_value(arguments, "--args")
    proposal = Proposal("tool", tool, effect_class, value, agent, principal, project=project)
    tools = files.tools(agent)
    own = () if tools is None else (Layer("agent", allow=tools.allow, deny=tools.deny),)
    ruling = rule_on(proposal, CompiledPolicy(files.policy()), files.holds, own)
    return explain_ruling(ruling, "tool", tool, effect)


def _print_explained(terminal: Terminal, explained: Explained) -> None:
    from atlas.cli.text import clean
    from atlas.kernel.floor import NOTICE

    shown = f"{explained.kind} {explained.name}" + (f" ({explained.effect})" if explained.effect else "")
    terminal.say(f"{clean(shown)}, {explained.effect_class}: {explained.decision}")
    terminal.say(f"  because: {clean(explained.reason) or 'nothing speaks against it'}")
    if explained.version:
        terminal.say(f"  policy version {explained.version[:16]}")
    width = max((len(f"{each.layer}: {each.rule}") for each in explained.spoke), default=0)
    for each in explained.spoke:
        mark = (
            "*"
            if (each.layer, each.rule, each.decision) == (explained.layer, explained.rule, explained.decision)
            else " "
        )
        said = " ".join(word for word in (each.reason, f"(as for {each.about})" if each.about else "") if word)
        terminal.say(clean(f"{mark} {each.decision:5}  {f'{each.layer}: {each.rule}':{width}}  {said}".rstrip()))
    for line in explained.outcome:
        terminal.say(f"  then: {clean(line)}")
    if any(each.layer == "floor" for each in explained.spoke):
        terminal.note(NOTICE)
