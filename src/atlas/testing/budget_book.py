"""A second set of books: what the caps should say, kept from acknowledged commits alone and never from the ledger."""

from __future__ import annotations

from collections.abc import Sequence

from atlas.kernel.budget import Balance, Cap, Hold
from atlas.kernel.event import Spend


class ShadowBook:
    """Counts what was admitted and settled, and notes every admission after which a cap was passed."""

    def __init__(self) -> None:
        self.buckets: dict[str, dict[str, Balance]] = {}
        self.holds: dict[tuple[str, str], Hold] = {}
        self.admissions = 0
        self.settlements = 0
        self.overshoots = 0
        self.worst_overshoot = 0
        self.fullest = 0.0

    def reserved(self, run_id: str, effect: str, hold: Hold, caps: Sequence[Cap]) -> None:
        """An acknowledged reservation; every one of its caps is looked at."""
        self.admissions += 1
        self.holds[run_id, effect] = hold
        self._move(hold, 0, hold.micro_usd, 0, hold.tokens)
        for cap in caps:
            found = self.balance(cap)
            for limit, used in (
                (cap.micro_usd, found.spent_micro_usd + found.held_micro_usd),
                (cap.tokens, found.spent_tokens + found.held_tokens),
            ):
                if limit is None:
                    continue
                self.fullest = max(self.fullest, used / limit if limit else float(used > 0))
                if used > limit:
                    self.overshoots += 1
                    self.worst_overshoot = max(self.worst_overshoot, used - limit)

    def settled(self, run_id: str, effect: str, spend: Spend) -> None:
        """An acknowledged settlement, which releases the hold."""
        self.settlements += 1
        hold = self.holds.pop((run_id, effect))
        self._move(hold, spend.cost_micro_usd, -hold.micro_usd, spend.tokens_in + spend.tokens_out, -hold.tokens)

    def open_effects(self, run_id: str) -> list[str]:
        """What a run has reserved and not settled."""
        return [effect for owner, effect in self.holds if owner == run_id]

    def balance(self, cap: Cap) -> Balance:
        """How far a cap has gone."""
        total = Balance()
        for bucket, found in self.buckets.get(cap.scope, {}).items():
            if cap.first <= bucket <= cap.last:
                total = total.plus(found.spent_micro_usd, found.held_micro_usd, found.spent_tokens, found.held_tokens)
        return total

    def caps(self) -> list[Cap]:
        """A cap without a limit on every meter there is: for comparing all of them with a ledger's."""
        return [Cap(scope, scope, bucket, bucket) for scope in self.buckets for bucket in self.buckets[scope]]

    def _move(self, hold: Hold, spent: int, held: int, tokens: int, held_tokens: int) -> None:
        for meter in hold.meters:
            scope = self.buckets.setdefault(meter.scope, {})
            scope[meter.bucket] = scope.get(meter.bucket, Balance()).plus(spent, held, tokens, held_tokens)
