-- The ledger's tables. Every adapter has the same tables and columns; types and indexes are the adapter's own.
--
-- Times are integer UTC microseconds. event.time_us is the author's; every other one is the ledger's.
-- An empty text means "none". A run without a lease has owner ''.

-- What this ledger is: ledger_id, created_us, atlas_version (the Atlas that last changed the schema).
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE session (
    session_id TEXT PRIMARY KEY,
    agent      TEXT    NOT NULL,
    principal  TEXT    NOT NULL,
    created_us INTEGER NOT NULL,
    turns      INTEGER NOT NULL, -- top-level runs so far; the next one takes turns + 1
    branch_of  TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

-- A run beside its events: lease, place in the queue, head of the chain and totals.
CREATE TABLE run (
    run_id         TEXT PRIMARY KEY,
    session_id     TEXT    NOT NULL,
    turn           INTEGER NOT NULL, -- 0 for a child
    agent          TEXT    NOT NULL,
    version        TEXT    NOT NULL,
    snapshot       TEXT    NOT NULL,
    principal      TEXT    NOT NULL,
    parent_run_id  TEXT    NOT NULL,
    parent_effect  TEXT    NOT NULL,
    root_run_id    TEXT    NOT NULL,
    depth          INTEGER NOT NULL,
    priority       INTEGER NOT NULL,
    place          TEXT    NOT NULL,
    key            TEXT    NOT NULL,
    state          TEXT    NOT NULL,
    created_us     INTEGER NOT NULL,
    updated_us     INTEGER NOT NULL,
    ended_us       INTEGER NOT NULL, -- 0 until the state is terminal
    due_us         INTEGER NOT NULL,
    owner          TEXT    NOT NULL,
    generation     INTEGER NOT NULL, -- raised by every claim, never lowered: the fence
    lease_until_us INTEGER NOT NULL, -- live while greater than now; 0 when nobody holds the run
    head_seq       INTEGER NOT NULL,
    head_hash      BLOB    NOT NULL,
    steps          INTEGER NOT NULL,
    tokens_in      INTEGER NOT NULL,
    tokens_out     INTEGER NOT NULL,
    cost_micro_usd INTEGER NOT NULL,
    is_blocked     INTEGER NOT NULL, -- 1 while an earlier turn of the session has not ended
    tag            INTEGER NOT NULL  -- fair-share tag; 0 while not queued, not due or blocked
) STRICT;

-- Newest first is descending run_id: ids sort by the time they were made.
CREATE INDEX run_by_agent     ON run (agent, state, run_id);
CREATE INDEX run_by_state     ON run (state, run_id);
CREATE INDEX run_by_session   ON run (session_id, run_id);
CREATE INDEX run_by_principal ON run (principal, run_id);
CREATE INDEX run_by_root      ON run (root_run_id, run_id);
CREATE INDEX run_by_parent    ON run (parent_run_id, run_id);
CREATE INDEX run_ended_child  ON run (agent, snapshot, ended_us, run_id) WHERE ended_us > 0 AND parent_run_id <> '';
CREATE INDEX run_ready        ON run (place, priority DESC, tag, created_us, run_id) WHERE state = 'queued' AND tag > 0;
CREATE INDEX run_later        ON run (due_us, created_us, run_id) WHERE state = 'queued' AND tag = 0 AND is_blocked = 0;
CREATE INDEX run_leased       ON run (lease_until_us, state, owner) WHERE owner <> '';
CREATE UNIQUE INDEX run_turn  ON run (session_id, turn) WHERE turn > 0 AND ended_us = 0;

-- position is dense and in commit order: it is assigned inside the one write transaction that there is at a time.
-- (A store with concurrent writers keeps the last position in a row of its own that each commit locks.)
CREATE TABLE event (
    position  INTEGER PRIMARY KEY,
    run_id    TEXT    NOT NULL,
    seq       INTEGER NOT NULL,
    time_us   INTEGER NOT NULL,
    kind      TEXT    NOT NULL,
    version   INTEGER NOT NULL,
    principal TEXT    NOT NULL,
    digest    BLOB    NOT NULL,
    prev      BLOB    NOT NULL,
    hash      BLOB    NOT NULL,
    salt      BLOB    NOT NULL, -- empty, like body, once erased
    body      BLOB    NOT NULL
) STRICT;

CREATE UNIQUE INDEX event_by_run ON event (run_id, seq);

-- Consumed signals stay, so that an id is never inserted twice; what they said lives on in the event only.
CREATE TABLE signal (
    number       INTEGER PRIMARY KEY, -- order of insertion
    id           TEXT    NOT NULL UNIQUE,
    run_id       TEXT    NOT NULL,
    kind         TEXT    NOT NULL,
    principal    TEXT    NOT NULL,
    body         BLOB    NOT NULL,
    created_us   INTEGER NOT NULL,
    consumed_seq INTEGER NOT NULL, -- head_seq of the run after the append that consumed it; 0 until then
    is_late      INTEGER NOT NULL  -- 1 when the run had ended before anybody consumed it
) STRICT;

CREATE INDEX signal_open    ON signal (run_id, number) WHERE consumed_seq = 0;
CREATE INDEX signal_waiting ON signal (number) WHERE consumed_seq = 0 AND is_late = 0;

CREATE TABLE inbox (
    run_id     TEXT    NOT NULL,
    effect     TEXT    NOT NULL,
    kind       TEXT    NOT NULL,
    agent      TEXT    NOT NULL,
    principal  TEXT    NOT NULL,
    body       BLOB    NOT NULL,
    created_us INTEGER NOT NULL,
    PRIMARY KEY (run_id, effect)
) STRICT, WITHOUT ROWID;

CREATE INDEX inbox_by_age ON inbox (created_us, run_id, effect);

CREATE TABLE idempotency (
    principal   TEXT NOT NULL,
    agent       TEXT NOT NULL,
    key         TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    run_id      TEXT NOT NULL,
    PRIMARY KEY (principal, agent, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE spend (
    day            TEXT    NOT NULL, -- UTC day of the append, YYYY-MM-DD
    agent          TEXT    NOT NULL,
    principal      TEXT    NOT NULL,
    steps          INTEGER NOT NULL,
    tokens_in      INTEGER NOT NULL,
    tokens_out     INTEGER NOT NULL,
    cost_micro_usd INTEGER NOT NULL,
    PRIMARY KEY (day, agent, principal)
) STRICT, WITHOUT ROWID;

-- How many runs a tree has had, its root included.
CREATE TABLE tree (
    root_run_id TEXT PRIMARY KEY,
    runs        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Children started per second of the last minute; older rows are deleted when the tree spawns again.
CREATE TABLE spawn (
    root_run_id TEXT    NOT NULL,
    second      INTEGER NOT NULL,
    runs        INTEGER NOT NULL,
    PRIMARY KEY (root_run_id, second)
) STRICT, WITHOUT ROWID;

-- Fair share (start-time fair queueing) in each lane, that is each place and priority. A run that becomes
-- claimable gets tag = max(virtual time, last tag of its tree + 1); the lowest tag is claimed first, and claiming
-- sets the virtual time to that tag. The row of root '' holds the virtual time, the others the last tag of a tree.
CREATE TABLE lane (
    place       TEXT    NOT NULL,
    priority    INTEGER NOT NULL,
    root_run_id TEXT    NOT NULL,
    tag         INTEGER NOT NULL,
    PRIMARY KEY (place, priority, root_run_id)
) STRICT, WITHOUT ROWID;
