-- Statements by name. Parameters are positional (?) in the order of the columns or conditions.

-- name: find_scope
SELECT id, reach FROM scope WHERE name = ?;

-- name: add_scope
INSERT INTO scope (name, reach) VALUES (?, 0) ON CONFLICT (name) DO NOTHING;

-- name: move_reach
UPDATE scope SET reach = ? WHERE id = ?;

-- name: lower_reach
UPDATE scope SET reach = min(reach, ?) WHERE id = ?;

-- name: find_run
SELECT run_id, scope, turn FROM run WHERE run_id = ?;

-- name: run_of_turn
SELECT run.run_id, run.turn, run.title, run.seq, run.is_over
FROM run JOIN scope ON scope.id = run.scope WHERE scope.name = ? AND run.turn = ?;

-- name: seq_of
SELECT seq FROM run WHERE run_id = ?;

-- name: is_over
SELECT is_over FROM run WHERE scope = ? AND turn = ?;

-- name: titles
SELECT run.title FROM run JOIN scope ON scope.id = run.scope
WHERE scope.name = ? AND run.is_over ORDER BY run.turn DESC;

-- name: put_run
INSERT OR REPLACE INTO run (run_id, scope, turn, title, seq, is_over) VALUES (?, ?, ?, ?, ?, ?);

-- name: drop_run
DELETE FROM run WHERE run_id = ?;

-- name: drop_passages
DELETE FROM passage WHERE rowid IN (SELECT id FROM piece WHERE run_id = ?);

-- name: drop_pieces
DELETE FROM piece WHERE run_id = ?;

-- name: add_piece
INSERT INTO piece (run_id) VALUES (?);

-- name: add_passage
INSERT INTO passage (rowid, title, near, text, scope, handle, start, at, own_title, own_text)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: find
SELECT handle, start, at, title, text, own_title, own_text, -bm25(passage, 2.0, 0.5, 1.0, 0.0) AS score
FROM passage WHERE passage MATCH ? ORDER BY score DESC, at DESC LIMIT ?;

-- name: newest
SELECT handle, start, at, title, text, own_title, own_text FROM passage WHERE passage MATCH ? ORDER BY rowid DESC LIMIT ?;
