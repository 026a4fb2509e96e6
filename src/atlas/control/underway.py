"""Where each call of a run's code stands: it waits to be judged, or it is under way."""

from __future__ import annotations

from atlas.control.record import Record
from atlas.kernel.code import CallMade


class UnderWay:
    """The calls of one attempt."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._begun: dict[int, CallMade] = {}
        self._waiting: dict[str, dict[int, CallMade]] = {}

    def wait(self, call: CallMade) -> None:
        """The call is to be judged."""
        self._record.state.live.calls[call.id] = call
        self._waiting.setdefault(call.effect, {})[call.id] = call

    def drop(self, call: CallMade) -> None:
        """The call is no longer to be judged."""
        self._record.state.live.calls.pop(call.id, None)
        same = self._waiting.get(call.effect)
        if same is not None and same.pop(call.id, None) is not None and not same:
            del self._waiting[call.effect]

    def begin(self, call: CallMade) -> None:
        """The call was judged and goes its way."""
        self.drop(call)
        self._record.state.live.performing[call.effect] = call.id
        self._begun[call.id] = call

    def begun(self, call_id: int) -> CallMade | None:
        """A call that is under way; None when the code made it up."""
        return self._begun.get(call_id)

    def end(self, call_id: int) -> CallMade | None:
        """The call is no longer under way; None when it never was."""
        call = self._begun.pop(call_id, None)
        if call is not None:
            self._record.state.live.performing.pop(call.effect, None)
        return call

    def put_back(self, call: CallMade) -> None:
        """The call that was under way is to be judged once more."""
        self.end(call.id)
        self.wait(call)

    def waiting(self, effect: str) -> tuple[CallMade, ...]:
        """The calls for this effect that are to be judged."""
        return tuple(self._waiting.get(effect, {}).values())

    def forget(self) -> None:
        """The code that made the calls is gone."""
        self._begun.clear()
        self._waiting.clear()
