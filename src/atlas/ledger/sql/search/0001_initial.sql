-- The search index: derived from the ledger, deleted and built again whenever its shape changes.
CREATE TABLE scope (
    id    INTEGER PRIMARY KEY,
    name  TEXT    NOT NULL UNIQUE, -- a session, or a child run
    reach INTEGER NOT NULL         -- every turn up to this one is indexed and over
);

CREATE TABLE run (
    run_id  TEXT    PRIMARY KEY,
    scope   INTEGER NOT NULL,
    turn    INTEGER NOT NULL,
    title   TEXT    NOT NULL,
    seq     INTEGER NOT NULL, -- indexed up to this event
    is_over INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX run_by_turn ON run (scope, turn);

CREATE TABLE piece (
    id     INTEGER PRIMARY KEY, -- the passage's rowid
    run_id TEXT    NOT NULL
);
CREATE INDEX piece_by_run ON piece (run_id);

-- own_title and own_text are as they were recorded, where the columns that are searched differ from it.
CREATE VIRTUAL TABLE passage USING fts5(
    title, near, text, scope, handle UNINDEXED, start UNINDEXED, at UNINDEXED, own_title UNINDEXED, own_text UNINDEXED,
    tokenize = 'porter unicode61 categories ''L* N* Co Mn Mc'''
);
