"""The ledger's adapters: in memory, SQLite and Postgres behind the port `atlas.kernel.port.Ledger`."""
