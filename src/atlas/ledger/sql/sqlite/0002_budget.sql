-- Budgets: meters, what is reserved on them, and totals by model.

-- A counter of money and tokens. An admission reads the meters of the caps it names and nothing else.
CREATE TABLE meter (
    scope           TEXT    NOT NULL,
    bucket          TEXT    NOT NULL, -- '', a day, or an hour: text in the order of time
    spent_micro_usd INTEGER NOT NULL,
    held_micro_usd  INTEGER NOT NULL, -- reserved and not settled yet
    spent_tokens    INTEGER NOT NULL,
    held_tokens     INTEGER NOT NULL,
    PRIMARY KEY (scope, bucket)
) STRICT, WITHOUT ROWID;

-- What an intent reserved, until it is settled.
CREATE TABLE hold (
    run_id     TEXT    NOT NULL,
    effect     TEXT    NOT NULL,
    micro_usd  INTEGER NOT NULL,
    tokens     INTEGER NOT NULL,
    created_us INTEGER NOT NULL,
    body       BLOB    NOT NULL, -- JSON: the hold with its meters, and the caps whose thresholds are watched
    PRIMARY KEY (run_id, effect)
) STRICT, WITHOUT ROWID;

-- Alerts that were raised: each once in its period.
CREATE TABLE warned (
    cap      TEXT    NOT NULL,
    scope    TEXT    NOT NULL,
    period   TEXT    NOT NULL,
    fraction REAL    NOT NULL,
    at_us    INTEGER NOT NULL,
    PRIMARY KEY (scope, cap, period, fraction)
) STRICT, WITHOUT ROWID;

CREATE INDEX warned_by_time ON warned (at_us, scope, cap, fraction);

ALTER TABLE run ADD COLUMN estimated_micro_usd INTEGER NOT NULL DEFAULT 0; -- the part of the cost nobody billed for sure

ALTER TABLE spend RENAME TO spend_before;

CREATE TABLE spend (
    day             TEXT    NOT NULL, -- of the intent, in the configured zone; the UTC day of the append without one
    agent           TEXT    NOT NULL,
    principal       TEXT    NOT NULL,
    model           TEXT    NOT NULL, -- '' for what no model used
    is_estimated    INTEGER NOT NULL,
    steps           INTEGER NOT NULL,
    tokens_in       INTEGER NOT NULL,
    tokens_out      INTEGER NOT NULL,
    cost_micro_usd  INTEGER NOT NULL,
    cached_in       INTEGER NOT NULL, -- the part of tokens_in that a provider's cache answered
    saved_micro_usd INTEGER NOT NULL, -- what that saved
    PRIMARY KEY (day, agent, principal, model, is_estimated)
) STRICT, WITHOUT ROWID;

INSERT INTO spend SELECT day, agent, principal, '', 0, steps, tokens_in, tokens_out, cost_micro_usd, 0, 0
FROM spend_before;

DROP TABLE spend_before;
