"""What Atlas ships for tests: a fake clock and the contract suites that adapters of its ports must pass."""
