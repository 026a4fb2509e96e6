-- Statements by name. Parameters are positional (?) in the order of the columns or conditions.

-- name: last_position
SELECT max(position) FROM event;

-- name: insert_event
INSERT INTO event (run_id, seq, position, time_us, kind, version, principal, digest, prev, hash, salt, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: erase_event
UPDATE event SET body = x'', salt = x'' WHERE run_id = ? AND seq = ?;

-- ---- runs: what an append needs, and what it leaves

-- name: run_head
SELECT rowid, state, owner, generation, head_seq, head_hash, agent, principal, session_id, turn, root_run_id,
       place, priority
FROM run WHERE run_id = ?;

-- name: touch_run
UPDATE run SET head_seq = ?2, head_hash = ?3, updated_us = ?4, steps = steps + ?5, tokens_in = tokens_in + ?6,
               tokens_out = tokens_out + ?7, cost_micro_usd = cost_micro_usd + ?8,
               estimated_micro_usd = estimated_micro_usd + ?9
WHERE rowid = ?1;

-- name: move_run
UPDATE run SET state = ?, updated_us = ? WHERE rowid = ?;

-- name: release_run
UPDATE run SET state = ?, updated_us = ?, owner = '', lease_until_us = 0 WHERE rowid = ?;

-- name: end_run
UPDATE run SET state = ?, updated_us = ?, ended_us = ?, owner = '', lease_until_us = 0 WHERE rowid = ?;

-- name: queue_run
UPDATE run SET state = 'queued', updated_us = ?, owner = '', lease_until_us = 0, due_us = ?, tag = ? WHERE rowid = ?;

-- name: add_spend
INSERT INTO spend (
    day, agent, principal, model, is_estimated, steps, tokens_in, tokens_out, cost_micro_usd, cached_in, saved_micro_usd
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (day, agent, principal, model, is_estimated) DO UPDATE SET
    steps = steps + excluded.steps,
    tokens_in = tokens_in + excluded.tokens_in,
    tokens_out = tokens_out + excluded.tokens_out,
    cost_micro_usd = cost_micro_usd + excluded.cost_micro_usd,
    cached_in = cached_in + excluded.cached_in,
    saved_micro_usd = saved_micro_usd + excluded.saved_micro_usd;

-- ---- budgets

-- name: get_meter
SELECT spent_micro_usd, held_micro_usd, spent_tokens, held_tokens FROM meter WHERE scope = ? AND bucket = ?;

-- name: sum_meters
SELECT coalesce(sum(spent_micro_usd), 0), coalesce(sum(held_micro_usd), 0),
       coalesce(sum(spent_tokens), 0), coalesce(sum(held_tokens), 0)
FROM meter WHERE scope = ? AND bucket BETWEEN ? AND ?;

-- name: add_meter
INSERT INTO meter (scope, bucket, spent_micro_usd, held_micro_usd, spent_tokens, held_tokens) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (scope, bucket) DO UPDATE SET
    spent_micro_usd = spent_micro_usd + excluded.spent_micro_usd,
    held_micro_usd = held_micro_usd + excluded.held_micro_usd,
    spent_tokens = spent_tokens + excluded.spent_tokens,
    held_tokens = held_tokens + excluded.held_tokens;

-- name: run_holds
SELECT effect, body FROM hold WHERE run_id = ? ORDER BY effect;

-- name: set_hold
INSERT OR REPLACE INTO hold (run_id, effect, micro_usd, tokens, created_us, body) VALUES (?, ?, ?, ?, ?, ?);

-- name: drop_hold
DELETE FROM hold WHERE run_id = ? AND effect = ?;

-- name: is_warned
SELECT 1 FROM warned WHERE scope = ? AND cap = ? AND period = ? AND fraction = ?;

-- name: add_warned
INSERT INTO warned (cap, scope, period, fraction, at_us) VALUES (?, ?, ?, ?, ?);

-- name: open_inbox
INSERT OR REPLACE INTO inbox (run_id, effect, kind, agent, principal, body, created_us) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: close_inbox
DELETE FROM inbox WHERE run_id = ? AND effect = ?;

-- ---- creating runs

-- name: find_key
SELECT fingerprint, run_id FROM idempotency WHERE principal = ? AND agent = ? AND key = ?;

-- name: insert_key
INSERT INTO idempotency (principal, agent, key, fingerprint, run_id) VALUES (?, ?, ?, ?, ?);

-- name: has_run
SELECT 1 FROM run WHERE run_id = ?;

-- name: find_session
SELECT agent, principal, turns FROM session WHERE session_id = ?;

-- name: insert_session
INSERT INTO session (session_id, agent, principal, created_us, turns, branch_of, branch_turn)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: take_turn
UPDATE session SET turns = ? WHERE session_id = ?;

-- name: has_open_turn
SELECT 1 FROM run WHERE session_id = ? AND turn > 0 AND ended_us = 0;

-- name: insert_run
INSERT INTO run (
    run_id, session_id, turn, agent, version, snapshot, principal, parent_run_id, parent_effect, root_run_id, depth,
    priority, place, key, state, created_us, updated_us, ended_us, due_us, owner, generation, lease_until_us,
    head_seq, head_hash, steps, tokens_in, tokens_out, cost_micro_usd, is_blocked, tag
) VALUES (
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
    ?, ?, ?, 'queued', ?, ?, 0, ?, '', 0, 0,
    ?, ?, 0, 0, 0, 0, ?, ?
);

-- name: tree_runs
SELECT runs FROM tree WHERE root_run_id = ?;

-- name: grow_tree
INSERT INTO tree (root_run_id, runs) VALUES (?, 1) ON CONFLICT (root_run_id) DO UPDATE SET runs = runs + 1;

-- name: recent_spawns
SELECT coalesce(sum(runs), 0) FROM spawn WHERE root_run_id = ? AND second >= ?;

-- name: drop_old_spawns
DELETE FROM spawn WHERE root_run_id = ? AND second < ?;

-- name: add_spawn
INSERT INTO spawn (root_run_id, second, runs) VALUES (?, ?, 1) ON CONFLICT (root_run_id, second) DO UPDATE SET runs = runs + 1;

-- ---- signals

-- name: signal_target
SELECT rowid, state, owner, place, priority, root_run_id FROM run WHERE run_id = ?;

-- name: insert_signal
INSERT INTO signal (id, run_id, kind, principal, body, created_us, consumed_seq, is_late)
VALUES (?, ?, ?, ?, ?, ?, 0, ?)
ON CONFLICT (id) DO NOTHING;

-- name: consume_signal
UPDATE signal SET consumed_seq = ?, body = x'' WHERE id = ? AND run_id = ? AND consumed_seq = 0;

-- name: has_signal
SELECT 1 FROM signal WHERE run_id = ? AND consumed_seq = 0 LIMIT 1;

-- name: end_signals
UPDATE signal SET is_late = 1 WHERE run_id = ? AND consumed_seq = 0;

-- name: waiting_signals
SELECT id, run_id, kind, principal, body, created_us FROM signal WHERE consumed_seq = 0 AND is_late = 0 ORDER BY number;

-- name: open_signals
SELECT id, run_id, kind, principal, body, created_us FROM signal WHERE run_id = ? AND consumed_seq = 0 ORDER BY number;

-- ---- the queue
-- INDEXED BY where the planner, which knows no sizes, would rather read all runs of a state.

-- name: lane_tag
SELECT tag FROM lane WHERE place = ? AND priority = ? AND root_run_id = ?;

-- name: set_lane_tag
INSERT INTO lane (place, priority, root_run_id, tag) VALUES (?, ?, ?, ?)
ON CONFLICT (place, priority, root_run_id) DO UPDATE SET tag = excluded.tag;

-- name: drop_lane
DELETE FROM lane WHERE place = ? AND priority = ? AND root_run_id = ?;

-- name: runs_come_due
SELECT rowid, place, priority, root_run_id FROM run INDEXED BY run_later
WHERE state = 'queued' AND tag = 0 AND is_blocked = 0 AND due_us <= ?
ORDER BY due_us, created_us, run_id;

-- name: set_tag
UPDATE run SET tag = ? WHERE rowid = ?;

-- name: next_turn
SELECT rowid, state, due_us, place, priority, root_run_id FROM run
WHERE session_id = ? AND turn > 0 AND ended_us = 0 ORDER BY turn LIMIT 1;

-- name: unblock
UPDATE run SET is_blocked = 0, tag = ? WHERE rowid = ?;

-- name: count_running
SELECT count(*) FROM run INDEXED BY run_leased WHERE owner <> '' AND lease_until_us > ? AND state = 'running';

-- name: lapsed_runs
SELECT rowid, run_id, state, owner, generation, place, priority, tag FROM run INDEXED BY run_leased
WHERE owner <> '' AND lease_until_us <= ? AND state IN ('running', 'waiting', 'in_doubt')
ORDER BY priority DESC, created_us, run_id;

-- name: ready_runs
SELECT rowid, run_id, state, owner, generation, place, priority, tag, created_us FROM run
WHERE state = 'queued' AND tag > 0 AND place = ?
ORDER BY priority DESC, tag, created_us, run_id LIMIT ?;

-- name: one_run
SELECT rowid, run_id, state, owner, generation, place, priority, tag, is_blocked, lease_until_us FROM run
WHERE run_id = ?;

-- name: take_run
UPDATE run SET state = ?, owner = ?, generation = ?, lease_until_us = ?, updated_us = ?, tag = 0 WHERE rowid = ?;

-- name: renew_lease
UPDATE run SET lease_until_us = ? WHERE run_id = ? AND owner = ? AND generation = ?;

-- name: lease_owners
SELECT DISTINCT owner FROM run WHERE owner <> '' AND lease_until_us > ? ORDER BY owner;

-- name: expire_owner
UPDATE run SET lease_until_us = ? WHERE owner <> '' AND owner = ? AND lease_until_us > ?;

-- ---- reading

-- name: run_events
SELECT run_id, seq, position, time_us, kind, version, principal, digest, prev, hash, salt, body
FROM event WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT ?;

-- name: feed
SELECT run_id, seq, position, time_us, kind, version, principal, digest, prev, hash, salt, body
FROM event WHERE position > ? ORDER BY position LIMIT ?;

-- name: select_run
SELECT run_id, session_id, turn, agent, version, snapshot, principal, parent_run_id, parent_effect, root_run_id, depth,
       priority, place, key, state, created_us, updated_us, ended_us, due_us, owner, generation, lease_until_us,
       head_seq, head_hash, steps, tokens_in, tokens_out, cost_micro_usd, estimated_micro_usd
FROM run

-- name: where_run
WHERE run_id = ?

-- name: where_ended_child
WHERE agent = ? AND snapshot = ? AND ended_us > 0 AND parent_run_id <> ''
ORDER BY ended_us DESC, run_id DESC LIMIT ?

-- Conditions of a list of runs, joined by AND and followed by `newest_first`. Each query is driven by one index,
-- (its column, run_id) or (agent, state, run_id); the other conditions get a + before them, which hides their
-- columns from the planner, so that it cannot choose an index that would have to be read from end to end.

-- name: if_agent
agent = :agent

-- name: if_state
state = :state

-- name: if_states
state IN (SELECT value FROM json_each(:states))

-- name: if_session_id
session_id = :session_id

-- name: if_principal
principal = :principal

-- name: if_root_run_id
root_run_id = :root_run_id

-- name: if_parent_run_id
parent_run_id = :parent_run_id

-- name: if_roots_only
parent_run_id = ''

-- name: if_id_prefix
run_id >= :id_prefix AND run_id < :id_after

-- name: if_before
run_id < :before

-- name: newest_first
ORDER BY run_id DESC LIMIT :limit

-- name: get_session
SELECT session_id, agent, principal, created_us, turns, branch_of, branch_turn FROM session WHERE session_id = ?;

-- name: list_inbox
SELECT run_id, effect, kind, agent, principal, body, created_us FROM inbox ORDER BY created_us, run_id, effect;

-- name: list_inbox_of_run
SELECT run_id, effect, kind, agent, principal, body, created_us FROM inbox WHERE run_id = ? ORDER BY created_us, effect;

-- name: list_spend
SELECT day, agent, principal, steps, tokens_in, tokens_out, cost_micro_usd, model, is_estimated, cached_in,
       saved_micro_usd
FROM spend WHERE day >= ? ORDER BY day, agent, principal, model, is_estimated;

-- name: list_spend_of_agent
SELECT day, agent, principal, steps, tokens_in, tokens_out, cost_micro_usd, model, is_estimated, cached_in,
       saved_micro_usd
FROM spend WHERE day >= ? AND agent = ? ORDER BY day, principal, model, is_estimated;

-- name: list_warned
SELECT cap, scope, period, fraction, at_us FROM warned WHERE at_us >= ? ORDER BY at_us, scope, cap, fraction;
