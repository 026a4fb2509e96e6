-- Branches: the turn at which a session left the one that it branched off from.

-- Its first run has this turn, and the turns below it are those of branch_of. 0: it began with turn 1, knowing nothing.
ALTER TABLE session ADD COLUMN branch_turn INTEGER NOT NULL DEFAULT 0;
