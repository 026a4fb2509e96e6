-- Budgets: meters, what is reserved on them, and totals by model.

-- A counter of money and tokens. An admission reads the meters of the caps it names and nothing else.
CREATE TABLE meter (
    scope           text COLLATE "C" NOT NULL,
    bucket          text COLLATE "C" NOT NULL, -- '', a day, or an hour: text in the order of time
    spent_micro_usd bigint NOT NULL,
    held_micro_usd  bigint NOT NULL, -- reserved and not settled yet
    spent_tokens    bigint NOT NULL,
    held_tokens     bigint NOT NULL,
    PRIMARY KEY (scope, bucket)
) WITH (fillfactor = 70);

-- What an intent reserved, until it is settled.
CREATE TABLE hold (
    run_id     text COLLATE "C" NOT NULL,
    effect     text COLLATE "C" NOT NULL,
    micro_usd  bigint NOT NULL,
    tokens     bigint NOT NULL,
    created_us bigint NOT NULL,
    body       bytea  NOT NULL, -- JSON: the hold with its meters, and the caps whose thresholds are watched
    PRIMARY KEY (run_id, effect)
);

-- Alerts that were raised: each once in its period.
CREATE TABLE warned (
    cap      text COLLATE "C" NOT NULL,
    scope    text COLLATE "C" NOT NULL,
    period   text COLLATE "C" NOT NULL,
    fraction double precision NOT NULL,
    at_us    bigint NOT NULL,
    PRIMARY KEY (scope, cap, period, fraction)
);

CREATE INDEX warned_by_time ON warned (at_us, scope, cap, fraction);

ALTER TABLE run ADD COLUMN estimated_micro_usd bigint NOT NULL DEFAULT 0; -- the part of the cost nobody billed for sure

ALTER TABLE spend
    DROP CONSTRAINT spend_pkey,
    ADD COLUMN model           text COLLATE "C" NOT NULL DEFAULT '', -- '' for what no model used
    ADD COLUMN is_estimated    bigint NOT NULL DEFAULT 0,
    ADD COLUMN cached_in       bigint NOT NULL DEFAULT 0, -- the part of tokens_in that a provider's cache answered
    ADD COLUMN saved_micro_usd bigint NOT NULL DEFAULT 0, -- what that saved
    ADD PRIMARY KEY (day, agent, principal, model, is_estimated);

COMMENT ON COLUMN spend.day IS 'of the intent, in the configured zone; the UTC day of the append without one';
