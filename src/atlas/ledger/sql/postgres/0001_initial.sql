-- The ledger's tables in schema atlas: the same tables and columns as in every other adapter.
--
-- Times are integer UTC microseconds. event.time_us is the author's; every other one is the server's.
-- An empty text means "none". A run without a lease has owner ''. Text that is compared as a range or sorted is
-- COLLATE "C", so that every server orders it by its bytes.

-- The ledger's time: the server's, the same for every process whatever the clock of its machine says.
CREATE FUNCTION now_us() RETURNS bigint LANGUAGE sql VOLATILE
    RETURN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

-- What this ledger is: schema, ledger_id, created_us, atlas_version (the Atlas that last changed the schema).
CREATE TABLE meta (
    name  text PRIMARY KEY,
    value text NOT NULL
);

CREATE TABLE session (
    session_id text COLLATE "C" PRIMARY KEY,
    agent      text   NOT NULL,
    principal  text   NOT NULL,
    created_us bigint NOT NULL,
    turns      bigint NOT NULL, -- top-level runs so far; the next one takes turns + 1
    branch_of  text   NOT NULL
);

-- A run beside its events: lease, place in the queue, head of the chain and totals.
-- Rows are updated by every commit, so pages keep room for new versions of them.
CREATE TABLE run (
    run_id         text COLLATE "C" PRIMARY KEY,
    session_id     text COLLATE "C" NOT NULL,
    turn           bigint  NOT NULL, -- 0 for a child
    agent          text COLLATE "C" NOT NULL,
    version        text    NOT NULL,
    snapshot       text COLLATE "C" NOT NULL,
    principal      text COLLATE "C" NOT NULL,
    parent_run_id  text COLLATE "C" NOT NULL,
    parent_effect  text    NOT NULL,
    root_run_id    text COLLATE "C" NOT NULL,
    depth          bigint  NOT NULL,
    priority       bigint  NOT NULL,
    place          text COLLATE "C" NOT NULL,
    key            text    NOT NULL,
    state          text COLLATE "C" NOT NULL,
    created_us     bigint  NOT NULL,
    updated_us     bigint  NOT NULL,
    ended_us       bigint  NOT NULL, -- 0 until the state is terminal
    due_us         bigint  NOT NULL,
    owner          text COLLATE "C" NOT NULL,
    generation     bigint  NOT NULL, -- raised by every claim, never lowered: the fence
    lease_until_us bigint  NOT NULL, -- live while greater than now; 0 when nobody holds the run
    head_seq       bigint  NOT NULL,
    head_hash      bytea   NOT NULL,
    steps          bigint  NOT NULL,
    tokens_in      bigint  NOT NULL,
    tokens_out     bigint  NOT NULL,
    cost_micro_usd bigint  NOT NULL,
    is_blocked     bigint  NOT NULL, -- 1 while an earlier turn of the session has not ended
    tag            bigint  NOT NULL  -- fair-share tag; 0 while not queued, not due or blocked
) WITH (fillfactor = 70);

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

-- position is dense and in commit order: it is assigned under the advisory lock that every commit holds to its end.
CREATE TABLE event (
    position  bigint PRIMARY KEY,
    run_id    text COLLATE "C" NOT NULL,
    seq       bigint NOT NULL,
    time_us   bigint NOT NULL,
    kind      text   NOT NULL,
    version   bigint NOT NULL,
    principal text   NOT NULL,
    digest    bytea  NOT NULL,
    prev      bytea  NOT NULL,
    hash      bytea  NOT NULL,
    salt      bytea  NOT NULL, -- empty, like body, once erased
    body      bytea  NOT NULL
);

CREATE UNIQUE INDEX event_by_run ON event (run_id, seq);

-- Consumed signals stay, so that an id is never inserted twice; what they said lives on in the event only.
CREATE TABLE signal (
    number       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- order of insertion
    id           text   NOT NULL UNIQUE,
    run_id       text COLLATE "C" NOT NULL,
    kind         text   NOT NULL,
    principal    text   NOT NULL,
    body         bytea  NOT NULL,
    created_us   bigint NOT NULL,
    consumed_seq bigint NOT NULL, -- head_seq of the run after the append that consumed it; 0 until then
    is_late      bigint NOT NULL  -- 1 when the run had ended before anybody consumed it
);

CREATE INDEX signal_open    ON signal (run_id, number) WHERE consumed_seq = 0;
CREATE INDEX signal_waiting ON signal (number) WHERE consumed_seq = 0 AND is_late = 0;

CREATE TABLE inbox (
    run_id     text COLLATE "C" NOT NULL,
    effect     text COLLATE "C" NOT NULL,
    kind       text   NOT NULL,
    agent      text   NOT NULL,
    principal  text   NOT NULL,
    body       bytea  NOT NULL,
    created_us bigint NOT NULL,
    PRIMARY KEY (run_id, effect)
);

CREATE INDEX inbox_by_age ON inbox (created_us, run_id, effect);

CREATE TABLE idempotency (
    principal   text NOT NULL,
    agent       text NOT NULL,
    key         text NOT NULL,
    fingerprint text NOT NULL,
    run_id      text NOT NULL,
    PRIMARY KEY (principal, agent, key)
);

CREATE TABLE spend (
    day            text COLLATE "C" NOT NULL, -- UTC day of the append, YYYY-MM-DD
    agent          text COLLATE "C" NOT NULL,
    principal      text COLLATE "C" NOT NULL,
    steps          bigint NOT NULL,
    tokens_in      bigint NOT NULL,
    tokens_out     bigint NOT NULL,
    cost_micro_usd bigint NOT NULL,
    PRIMARY KEY (day, agent, principal)
);

-- How many runs a tree has had, its root included.
CREATE TABLE tree (
    root_run_id text COLLATE "C" PRIMARY KEY,
    runs        bigint NOT NULL
);

-- Children started per second of the last minute; older rows are deleted when the tree spawns again.
CREATE TABLE spawn (
    root_run_id text COLLATE "C" NOT NULL,
    second      bigint NOT NULL,
    runs        bigint NOT NULL,
    PRIMARY KEY (root_run_id, second)
);

-- Fair share (start-time fair queueing) in each lane, that is each place and priority. A run that becomes
-- claimable gets tag = max(virtual time, last tag of its tree + 1); the lowest tag is claimed first, and claiming
-- sets the virtual time to that tag. The row of root '' holds the virtual time, the others the last tag of a tree.
CREATE TABLE lane (
    place       text COLLATE "C" NOT NULL,
    priority    bigint NOT NULL,
    root_run_id text COLLATE "C" NOT NULL,
    tag         bigint NOT NULL,
    PRIMARY KEY (place, priority, root_run_id)
);
