"""What waits for a person, and the answers: from a terminal, a file, a program or the clock, all on one path.

A question has one id for its answer, so of two answers, wherever they come from, exactly one counts and the other is
told so. An answer is bound to the arguments and the tool that were shown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable

import msgspec

from atlas.control.payload import pack, unpack
from atlas.control.redaction import Redaction
from atlas.control.report import InboxEntry
from atlas.control.signal import AnswerBody, Remember, ResolveBody
from atlas.kernel.config import ApprovalConfig
from atlas.kernel.errors import Conflict, Invalid, NotFound, PolicyRefused
from atlas.kernel.event import (
    INLINE_LIMIT,
    NULL,
    EffectAsked,
    EffectIntended,
    EffectResolved,
    Payload,
    Resolution,
    draft,
)
from atlas.kernel.grant import Grant, hash_of
from atlas.kernel.ident import SIGNAL, new_id
from atlas.kernel.port import Clock, Ledger
from atlas.kernel.principal import OWNER, check_principal, may_see, refuse_inside
from atlas.kernel.run import TERMINAL, Append, InboxItem, NewSignal, RunRow
from atlas.kernel.tool import NO_RESULT, ToolOutcome

EXPIRY = "expiry"
"""Who denies what nobody answered in time."""


class Approvals:
    """The inbox of a host.

    `check` says what is wrong with arguments that a person changed; `remember` keeps a grant where people see it.
    `inside` is the run in whose name this process acts, if it does: then it answers nothing.
    """

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        settings: ApprovalConfig,
        redaction: Redaction,
        check: Callable[[RunRow, EffectAsked, bytes], Awaitable[str | None]],
        remember: Callable[[Grant], None],
        inside: str = "",
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._settings = settings
        self._redaction = redaction
        self._check = check
        self._remember = remember
        self._inside = inside

    async def waiting(self, principal: str = OWNER) -> list[InboxEntry]:
        """What waits for a person, oldest first: everything for the vault's owner, for others what is theirs."""
        check_principal(principal)
        answered = {signal.id for signal in await self._ledger.signals()}
        items = [item for item in await self._ledger.inbox() if _may_answer(principal, item)]
        return [await self._entry(item) for item in items if _answer_id(item) not in answered]

    async def answer(
        self,
        run_id: str,
        effect: str,
        approved: bool,
        reason: str = "",
        principal: str = "owner",
        *,
        args: bytes | None = None,
        remember: Remember = "",
    ) -> None:
        """Approves or denies an effect; bound to what was shown, or to the arguments given instead."""
        refuse_inside(self._inside)
        item = await self._item(run_id, effect, "approval", principal)
        reason = await self._said(reason)
        asked = msgspec.json.decode(item.body, type=EffectAsked)
        if asked.expires_us and asked.expires_us <= self._clock.now_us():
            await self.expire()
            raise Conflict("this was not answered in time and is denied", hint="See 'atlas inbox'.", code="expired")
        if asked.second_person and approved and principal == item.principal:
            raise PolicyRefused(
                f"{principal} asked for this run, and a rule wants another person to approve {asked.name}",
                hint="Somebody else answers with --as NAME; you can deny it.",
                code="second_person_needed",
            )
        if asked.second_person and remember:
            raise Invalid(f"a rule wants a second person for {asked.name} every time", code="not_remembered")
        if args is not None:
            args = await self._checked_args(item, asked, args, approved, remember)
        edited = None if args is None else Payload(msgspec.Raw(args), size=len(args))
        body = AnswerBody(effect, asked.args_hash, approved, reason, asked.definition, edited, remember)
        grant = await self._grant(item, asked, principal, remember) if approved and remember else None
        await self._tell(item, "answer", principal, msgspec.json.encode(body))
        # After the answer: whoever was too late has granted nothing.
        if grant is not None:
            self._remember(grant)

    async def resolve(
        self,
        run_id: str,
        effect: str,
        resolution: Resolution,
        result: bytes | None = None,
        reason: str = "",
        principal: str = "owner",
    ) -> None:
        """Says what became of an effect in doubt."""
        refuse_inside(self._inside)
        item = await self._item(run_id, effect, "doubt", principal)
        reason = await self._said(reason)
        payload = NULL
        if resolution == "done":
            raw = self._redaction.redactor.json(result or b"null")
            is_tool = msgspec.json.decode(item.body, type=EffectIntended).kind == "tool"
            payload = await pack(self._ledger, _outcome_of(raw) if is_tool else raw)
        row = await self._ledger.run(run_id)
        if row.state in TERMINAL:
            await self._resolve_ended(row, effect, resolution, payload, reason, principal)
            return
        body = ResolveBody(effect, resolution, payload, reason)
        await self._tell(item, "resolve", principal, msgspec.json.encode(body))

    async def expire(self) -> int:
        """Denies what nobody answered in time; how many questions that were."""
        now_us, expired = self._clock.now_us(), 0
        for item in await self._ledger.inbox():
            if item.kind != "approval":
                continue
            asked = msgspec.json.decode(item.body, type=EffectAsked)
            if asked.expires_us and asked.expires_us <= now_us:
                body = AnswerBody(item.effect, asked.args_hash, False, "nobody answered in time", asked.definition)
                new = NewSignal(_answer_id(item), item.run_id, "answer", EXPIRY, msgspec.json.encode(body))
                expired += await self._ledger.signal(new)
        return expired

    async def next_expiry_us(self) -> int:
        """When the next question expires; 0 when none of those that wait ever does."""
        items = [item for item in await self._ledger.inbox() if item.kind == "approval"]
        times = [msgspec.json.decode(item.body, type=EffectAsked).expires_us for item in items]
        return min((time_us for time_us in times if time_us), default=0)

    async def _tell(self, item: InboxItem, kind: str, principal: str, body: bytes) -> None:
        signal = NewSignal(_answer_id(item), item.run_id, "answer" if kind == "answer" else "resolve", principal, body)
        if not await self._ledger.signal(signal):
            raise Conflict("this was answered already", hint="See 'atlas inbox'.", code="already_answered")

    async def _checked_args(
        self, item: InboxItem, asked: EffectAsked, args: bytes, approved: bool, remember: str
    ) -> bytes | None:
        """The arguments that count instead of those asked about; None when they are the same."""
        if not approved:
            raise Invalid("arguments can only be changed to approve them", code="edit_without_approval")
        try:
            value = msgspec.json.decode(args)
        except msgspec.DecodeError as error:
            raise Invalid(f"the changed arguments are not JSON: {error}", code="edited_args_invalid") from None
        if value == msgspec.json.decode(await unpack(self._ledger, asked.args)):
            return None
        if asked.kind != "tool":
            raise Invalid(
                f"the arguments of a {asked.kind} cannot be changed, because its code has them already",
                hint="Deny it with a reason that says what should be different.",
                code="args_not_editable",
            )
        if remember:
            raise Invalid("changed arguments cannot be remembered", code="edit_remembered")
        if len(args) > INLINE_LIMIT:
            raise Invalid(f"changed arguments have at most {INLINE_LIMIT // 1024} KB", code="edited_args_too_large")
        complaint = await self._check(await self._ledger.run(item.run_id), asked, args)
        if complaint is not None:
            raise Invalid(f"the changed arguments do not fit {asked.name}: {complaint}", code="edited_args_invalid")
        return self._redaction.redactor.json(msgspec.json.encode(value))

    async def _grant(self, item: InboxItem, asked: EffectAsked, by: str, remember: Remember) -> Grant:
        row = await self._ledger.run(item.run_id)
        args = await unpack(self._ledger, asked.args)
        run_id, shown_hash = item.run_id if remember == "run" else "", hash_of(args)
        what = (asked.kind, asked.name, asked.args_hash, shown_hash, asked.definition)
        name = msgspec.json.encode((item.agent, item.principal, row.session_id, run_id, *what))
        return Grant(
            id=f"g-{hashlib.sha256(name).hexdigest()[:12]}",
            agent=item.agent,
            principal=item.principal,
            kind=asked.kind,
            name=asked.name,
            args_hash=asked.args_hash,
            shown_hash=shown_hash,
            definition=asked.definition,
            shown=bytes(args)[:400].decode(errors="replace"),
            session_id=row.session_id,
            run_id=run_id,
            granted_by=by,
            granted_us=self._clock.now_us(),
        )

    async def _entry(self, item: InboxItem) -> InboxEntry:
        shown: EffectAsked | EffectIntended
        if item.kind == "approval":
            shown = msgspec.json.decode(item.body, type=EffectAsked)
        else:
            shown = msgspec.json.decode(item.body, type=EffectIntended)
        asked = shown if isinstance(shown, EffectAsked) else None
        row = await self._ledger.run(item.run_id)
        return InboxEntry(
            run_id=item.run_id,
            effect=item.effect,
            kind=item.kind,
            agent=item.agent,
            name=shown.name,
            args=await unpack(self._ledger, shown.args),
            effect_class=shown.effect_class,
            reason=shown.reason if asked is not None else "begun, outcome unknown",
            created_us=item.created_us,
            principal=item.principal,
            rule=shown.ruling.rule if shown.ruling is not None else "",
            layer=shown.ruling.layer if shown.ruling is not None else "",
            root_run_id=row.root_run_id,
            cost_usd=row.spend.cost_micro_usd / 1_000_000,
            expires_us=0 if asked is None else asked.expires_us,
            second_person=asked is not None and asked.second_person,
            is_editable=asked is not None and asked.kind == "tool",
            escalated_to=self._escalated_to(item),
        )

    def _escalated_to(self, item: InboxItem) -> str:
        after_s = self._settings.escalate_after_s
        if item.kind != "approval" or after_s is None:
            return ""
        is_late = self._clock.now_us() - item.created_us >= int(after_s * 1_000_000)
        return self._settings.escalate_to if is_late else ""

    async def _said(self, text: str) -> str:
        """What a person wrote, as it may be recorded."""
        await self._redaction.refresh()
        return self._redaction.text(text)

    async def _item(self, run_id: str, effect: str, kind: str, principal: str) -> InboxItem:
        check_principal(principal)
        for item in await self._ledger.inbox(run_id):
            if item.effect == effect and item.kind == kind and _may_answer(principal, item):
                return item
        raise NotFound(
            f"nothing in the inbox of {run_id} asks about {effect}", hint="It may be answered; see 'atlas inbox'."
        )

    async def _resolve_ended(
        self, row: RunRow, effect: str, resolution: Resolution, result: Payload, reason: str, principal: str
    ) -> None:
        """A run that has ended goes on no more: what a person says is only put on record."""
        owner = f"resolve|{new_id(SIGNAL, self._clock.now_us(), self._clock.entropy(10))}"
        claimed = await self._ledger.claim(
            owner, limit=1, lease_s=15.0, max_running=1, places=("", row.place), run_id=row.run_id
        )
        if not claimed:
            raise Conflict("another process is writing to this run", hint="Try again.", code="run_busy")
        body = EffectResolved(effect, resolution, principal, result, reason)
        await self._ledger.append(
            Append(
                lease=claimed[0].lease,
                drafts=(draft(body, self._clock.now_us(), principal),),
                release=True,
                inbox_close=(effect,),
            )
        )


def _outcome_of(result: bytes) -> bytes:
    """What a person says that a tool's call came to, as the tool would have said it."""
    value = msgspec.json.decode(result)
    text = value if isinstance(value, str) else NO_RESULT if value is None else result.decode()
    return msgspec.json.encode(ToolOutcome(text))


def _may_answer(principal: str, item: InboxItem) -> bool:
    """Whether a question is this principal's business: its own, the owner's, or one that wants a second person."""
    if may_see(principal, item.principal):
        return True
    return item.kind == "approval" and msgspec.json.decode(item.body, type=EffectAsked).second_person


def _answer_id(item: InboxItem) -> str:
    """One id per question: of two answers only the first counts."""
    kind = "answer" if item.kind == "approval" else "resolve"
    return f"{kind}:{item.run_id}:{item.effect}:{item.created_us}"
