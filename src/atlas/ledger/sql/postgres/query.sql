-- Statements by name. Parameters are positional (%s) in the order of the columns or conditions.
-- The first column of what finds a run is the key by which later statements name it: here its run_id.

-- ---- the session and the transaction

-- Only settings this server knows are set. An asynchronous commit would acknowledge what a crash can lose. Everything
-- here is found along an index; a plan that was made while a table was small must not read it from end to end later.
-- name: set_up
SELECT set_config(name, wanted.value, false)
FROM (VALUES
    ('search_path', 'atlas'),
    ('jit', 'off'),
    ('enable_seqscan', 'off'),
    ('enable_bitmapscan', 'off'),
    ('enable_sort', 'off'),
    ('synchronous_commit',
     CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END),
    ('default_transaction_read_only', %s),
    ('lock_timeout', %s),
    ('idle_in_transaction_session_timeout', %s),
    ('transaction_timeout', %s)
) AS wanted (name, value) JOIN pg_settings USING (name);

-- name: begin
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;

-- Two keys: the first is "atls" as a number, the second says for what.
-- name: lock_writes
SELECT pg_advisory_xact_lock(1635019891, 1);

-- name: lock_schema
SELECT pg_advisory_xact_lock(1635019891, 2);

-- For a migration, which may take as long as the tables are large.
-- name: take_time
SELECT set_config(name, '0', true) FROM pg_settings
WHERE name IN ('transaction_timeout', 'idle_in_transaction_session_timeout');

-- name: moment
SELECT now_us(), (SELECT coalesce(max(position), 0) FROM event), pg_current_xact_id()::text,
       (SELECT value FROM meta WHERE name = 'schema');

-- name: announce_work
SELECT pg_notify('atlas_work', %s);

-- name: announce_events
SELECT pg_notify('atlas_events', %s);

-- name: commit
COMMIT;

-- name: rollback
ROLLBACK;

-- name: outcome
SELECT pg_xact_status(%s::xid8);

-- ---- events

-- name: last_position
SELECT max(position) FROM event;

-- name: event_hash
SELECT hash FROM event WHERE position = %s;

-- name: insert_events
INSERT INTO event (run_id, seq, position, time_us, kind, version, principal, digest, prev, hash, salt, body)
SELECT * FROM unnest(
    %s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::text[], %s::bigint[], %s::text[],
    %s::bytea[], %s::bytea[], %s::bytea[], %s::bytea[], %s::bytea[]
);

-- name: erase_event
UPDATE event SET body = '', salt = '' WHERE run_id = %s AND seq = %s;

-- ---- runs: what an append needs, and what it leaves

-- name: run_head
SELECT run_id, state, owner, generation, head_seq, head_hash, agent, principal, session_id, turn, root_run_id,
       place, priority
FROM run WHERE run_id = %s;

-- name: run_heads
SELECT run_id, state, owner, generation, head_seq, head_hash, agent, principal, session_id, turn, root_run_id,
       place, priority
FROM run WHERE run_id = ANY(%s::text[]);

-- name: touch_runs
UPDATE run SET
    head_seq = new.seq,
    head_hash = new.hash,
    updated_us = new.now_us,
    steps = run.steps + new.steps,
    tokens_in = run.tokens_in + new.tokens_in,
    tokens_out = run.tokens_out + new.tokens_out,
    cost_micro_usd = run.cost_micro_usd + new.cost,
    estimated_micro_usd = run.estimated_micro_usd + new.estimated
FROM unnest(
    %s::text[], %s::bigint[], %s::bytea[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[],
    %s::bigint[]
) AS new (run_id, seq, hash, now_us, steps, tokens_in, tokens_out, cost, estimated)
WHERE run.run_id = new.run_id;

-- name: move_run
UPDATE run SET state = %s, updated_us = %s WHERE run_id = %s;

-- name: release_run
UPDATE run SET state = %s, updated_us = %s, owner = '', lease_until_us = 0 WHERE run_id = %s;

-- name: end_run
UPDATE run SET state = %s, updated_us = %s, ended_us = %s, owner = '', lease_until_us = 0 WHERE run_id = %s;

-- name: queue_run
UPDATE run SET state = 'queued', updated_us = %s, owner = '', lease_until_us = 0, due_us = %s, tag = %s
WHERE run_id = %s;

-- name: add_spends
INSERT INTO spend (
    day, agent, principal, model, is_estimated, steps, tokens_in, tokens_out, cost_micro_usd, cached_in, saved_micro_usd
)
SELECT * FROM unnest(
    %s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[],
    %s::bigint[], %s::bigint[], %s::bigint[]
)
ON CONFLICT (day, agent, principal, model, is_estimated) DO UPDATE SET
    steps = spend.steps + excluded.steps,
    tokens_in = spend.tokens_in + excluded.tokens_in,
    tokens_out = spend.tokens_out + excluded.tokens_out,
    cost_micro_usd = spend.cost_micro_usd + excluded.cost_micro_usd,
    cached_in = spend.cached_in + excluded.cached_in,
    saved_micro_usd = spend.saved_micro_usd + excluded.saved_micro_usd;

-- ---- budgets

-- All caps of an admission at once, in their order.
-- name: sum_caps
SELECT (SELECT ARRAY[
            coalesce(sum(spent_micro_usd), 0)::bigint, coalesce(sum(held_micro_usd), 0)::bigint,
            coalesce(sum(spent_tokens), 0)::bigint, coalesce(sum(held_tokens), 0)::bigint
        ] FROM meter WHERE scope = cap.scope AND bucket BETWEEN cap.first AND cap.last)
FROM unnest(%s::text[], %s::text[], %s::text[]) AS cap (scope, first, last);

-- name: add_meters
INSERT INTO meter (scope, bucket, spent_micro_usd, held_micro_usd, spent_tokens, held_tokens)
SELECT * FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])
ON CONFLICT (scope, bucket) DO UPDATE SET
    spent_micro_usd = meter.spent_micro_usd + excluded.spent_micro_usd,
    held_micro_usd = meter.held_micro_usd + excluded.held_micro_usd,
    spent_tokens = meter.spent_tokens + excluded.spent_tokens,
    held_tokens = meter.held_tokens + excluded.held_tokens;

-- name: run_holds
SELECT effect, body FROM hold WHERE run_id = %s ORDER BY effect;

-- name: group_holds
SELECT run_id, effect, body FROM hold WHERE run_id = ANY(%s::text[]);

-- name: set_hold
INSERT INTO hold (run_id, effect, micro_usd, tokens, created_us, body) VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (run_id, effect) DO UPDATE SET
    micro_usd = excluded.micro_usd,
    tokens = excluded.tokens,
    created_us = excluded.created_us,
    body = excluded.body;

-- name: drop_hold
DELETE FROM hold WHERE run_id = %s AND effect = %s;

-- name: is_warned
SELECT 1 FROM warned WHERE scope = %s AND cap = %s AND period = %s AND fraction = %s;

-- name: add_warned
INSERT INTO warned (cap, scope, period, fraction, at_us) VALUES (%s, %s, %s, %s, %s);

-- name: open_inbox
INSERT INTO inbox (run_id, effect, kind, agent, principal, body, created_us) VALUES (%s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (run_id, effect) DO UPDATE SET
    kind = excluded.kind,
    agent = excluded.agent,
    principal = excluded.principal,
    body = excluded.body,
    created_us = excluded.created_us;

-- name: close_inbox
DELETE FROM inbox WHERE run_id = %s AND effect = %s;

-- ---- creating runs

-- name: find_key
SELECT fingerprint, run_id FROM idempotency WHERE principal = %s AND agent = %s AND key = %s;

-- name: insert_key
INSERT INTO idempotency (principal, agent, key, fingerprint, run_id) VALUES (%s, %s, %s, %s, %s);

-- name: has_run
SELECT 1 FROM run WHERE run_id = %s;

-- name: find_session
SELECT agent, principal, turns FROM session WHERE session_id = %s;

-- name: insert_session
INSERT INTO session (session_id, agent, principal, created_us, turns, branch_of, branch_turn)
VALUES (%s, %s, %s, %s, %s, %s, %s);

-- name: take_turn
UPDATE session SET turns = %s WHERE session_id = %s;

-- name: has_open_turn
SELECT 1 FROM run WHERE session_id = %s AND turn > 0 AND ended_us = 0 LIMIT 1;

-- name: insert_run
INSERT INTO run (
    run_id, session_id, turn, agent, version, snapshot, principal, parent_run_id, parent_effect, root_run_id, depth,
    priority, place, key, state, created_us, updated_us, ended_us, due_us, owner, generation, lease_until_us,
    head_seq, head_hash, steps, tokens_in, tokens_out, cost_micro_usd, is_blocked, tag
) VALUES (
    %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s,
    %s, %s, %s, 'queued', %s, %s, 0, %s, '', 0, 0,
    %s, %s, 0, 0, 0, 0, %s, %s
);

-- name: tree_runs
SELECT runs FROM tree WHERE root_run_id = %s;

-- name: grow_tree
INSERT INTO tree (root_run_id, runs) VALUES (%s, 1) ON CONFLICT (root_run_id) DO UPDATE SET runs = tree.runs + 1;

-- name: recent_spawns
SELECT coalesce(sum(runs), 0)::bigint FROM spawn WHERE root_run_id = %s AND second >= %s;

-- name: drop_old_spawns
DELETE FROM spawn WHERE root_run_id = %s AND second < %s;

-- name: add_spawn
INSERT INTO spawn (root_run_id, second, runs) VALUES (%s, %s, 1)
ON CONFLICT (root_run_id, second) DO UPDATE SET runs = spawn.runs + 1;

-- ---- signals

-- name: signal_target
SELECT run_id, state, owner, place, priority, root_run_id FROM run WHERE run_id = %s;

-- name: insert_signal
INSERT INTO signal (id, run_id, kind, principal, body, created_us, consumed_seq, is_late)
VALUES (%s, %s, %s, %s, %s, %s, 0, %s::int)
ON CONFLICT (id) DO NOTHING;

-- name: consume_signal
UPDATE signal SET consumed_seq = %s, body = '' WHERE id = %s AND run_id = %s AND consumed_seq = 0;

-- name: has_signal
SELECT 1 FROM signal WHERE run_id = %s AND consumed_seq = 0 LIMIT 1;

-- name: end_signals
UPDATE signal SET is_late = 1 WHERE run_id = %s AND consumed_seq = 0;

-- name: waiting_signals
SELECT id, run_id, kind, principal, body, created_us FROM signal
WHERE consumed_seq = 0 AND is_late = 0 ORDER BY number;

-- name: open_signals
SELECT id, run_id, kind, principal, body, created_us FROM signal
WHERE run_id = %s AND consumed_seq = 0 ORDER BY number;

-- ---- the queue

-- name: lane_tag
SELECT tag FROM lane WHERE place = %s AND priority = %s AND root_run_id = %s;

-- name: set_lane_tag
INSERT INTO lane (place, priority, root_run_id, tag) VALUES (%s, %s, %s, %s)
ON CONFLICT (place, priority, root_run_id) DO UPDATE SET tag = excluded.tag;

-- name: drop_lane
DELETE FROM lane WHERE place = %s AND priority = %s AND root_run_id = %s;

-- Writers exclude each other by the lock of writes. A row that somebody has locked by hand is left out here, so that
-- it stops neither the claim nor the other runs of the queue.
-- name: runs_come_due
SELECT run_id, place, priority, root_run_id FROM run
WHERE state = 'queued' AND tag = 0 AND is_blocked = 0 AND due_us <= %s
ORDER BY due_us, created_us, run_id FOR UPDATE SKIP LOCKED;

-- name: set_tag
UPDATE run SET tag = %s WHERE run_id = %s;

-- name: next_turn
SELECT run_id, state, due_us, place, priority, root_run_id FROM run
WHERE session_id = %s AND turn > 0 AND ended_us = 0 ORDER BY turn LIMIT 1;

-- name: unblock
UPDATE run SET is_blocked = 0, tag = %s WHERE run_id = %s;

-- name: count_running
SELECT count(*) FROM run WHERE owner <> '' AND lease_until_us > %s AND state = 'running';

-- name: lapsed_runs
SELECT run_id, run_id, state, owner, generation, place, priority, tag FROM run
WHERE owner <> '' AND lease_until_us <= %s AND state IN ('running', 'waiting', 'in_doubt')
ORDER BY priority DESC, created_us, run_id FOR UPDATE SKIP LOCKED;

-- name: ready_runs
SELECT run_id, run_id, state, owner, generation, place, priority, tag, created_us FROM run
WHERE state = 'queued' AND tag > 0 AND place = %s
ORDER BY priority DESC, tag, created_us, run_id LIMIT %s FOR UPDATE SKIP LOCKED;

-- name: one_run
SELECT run_id, run_id, state, owner, generation, place, priority, tag, is_blocked, lease_until_us FROM run
WHERE run_id = %s;

-- name: take_run
UPDATE run SET state = %s, owner = %s, generation = %s, lease_until_us = %s, updated_us = %s, tag = 0
WHERE run_id = %s;

-- name: renew_lease
UPDATE run SET lease_until_us = %s WHERE run_id = %s AND owner = %s AND generation = %s;

-- name: lease_owners
SELECT DISTINCT owner FROM run WHERE owner <> '' AND lease_until_us > now_us() ORDER BY owner;

-- name: expire_owner
UPDATE run SET lease_until_us = %s WHERE owner <> '' AND owner = %s AND lease_until_us > %s;

-- ---- reading

-- name: run_events
SELECT run_id, seq, position, time_us, kind, version, principal, digest, prev, hash, salt, body
FROM event WHERE run_id = %s AND seq > %s ORDER BY seq LIMIT nullif(%s, -1);

-- name: feed
SELECT run_id, seq, position, time_us, kind, version, principal, digest, prev, hash, salt, body
FROM event WHERE position > %s ORDER BY position LIMIT nullif(%s, -1);

-- name: select_run
SELECT run_id, session_id, turn, agent, version, snapshot, principal, parent_run_id, parent_effect, root_run_id, depth,
       priority, place, key, state, created_us, updated_us, ended_us, due_us, owner, generation, lease_until_us,
       head_seq, head_hash, steps, tokens_in, tokens_out, cost_micro_usd, estimated_micro_usd
FROM run

-- name: where_run
WHERE run_id = %s

-- name: where_ended_child
WHERE agent = %s AND snapshot = %s AND ended_us > 0 AND parent_run_id <> ''
ORDER BY ended_us DESC, run_id DESC LIMIT %s

-- Conditions of a list of runs, joined by AND; the list is then ordered and cut by `newest_first`.

-- name: if_between
({columns}) >= ({first}) AND ({columns}) < ({last})

-- name: if_states
state = ANY(%(states)s::text[])

-- name: if_root_run_id
root_run_id = %(root_run_id)s

-- name: if_session_id
session_id = %(session_id)s

-- name: if_agent
agent = %(agent)s

-- name: if_principal
principal = %(principal)s

-- name: if_roots_only
parent_run_id = ''

-- name: newest_first
ORDER BY {order} LIMIT %(limit)s

-- name: get_session
SELECT session_id, agent, principal, created_us, turns, branch_of, branch_turn FROM session WHERE session_id = %s;

-- name: list_inbox
SELECT run_id, effect, kind, agent, principal, body, created_us FROM inbox ORDER BY created_us, run_id, effect;

-- name: list_inbox_of_run
SELECT run_id, effect, kind, agent, principal, body, created_us FROM inbox WHERE run_id = %s
ORDER BY created_us, effect;

-- name: list_spend
SELECT day, agent, principal, steps, tokens_in, tokens_out, cost_micro_usd, model, is_estimated, cached_in,
       saved_micro_usd
FROM spend WHERE day >= %s ORDER BY day, agent, principal, model, is_estimated;

-- name: list_spend_of_agent
SELECT day, agent, principal, steps, tokens_in, tokens_out, cost_micro_usd, model, is_estimated, cached_in,
       saved_micro_usd
FROM spend WHERE day >= %s AND agent = %s ORDER BY day, principal, model, is_estimated;

-- name: list_warned
SELECT cap, scope, period, fraction, at_us FROM warned WHERE at_us >= %s ORDER BY at_us, scope, cap, fraction;
